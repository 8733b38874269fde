"""KERPLE, power (Chi et al., arXiv 2205.09921): a bias that falls with a learned power of the distance.

    b(h, r) = -r1_h · r^(r2_h),   r = m - n,   r1 >= 0.01,   0.01 <= r2 <= 2

r2 = 1 is ALiBi with learned slopes. r1 and r2 are learned, one pair per head, starting at U(0, 1) and U(0, 2) like the
released code (there bias_a and bias_p), and held in range (positions/_kerple.py). As in that code all layers share
them: 2·H numbers in a model. With `shared: false` each layer has a pair per head of its own.

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances takes O(T·H) memory and T·H powers, per layer where they share nothing. Cost: one addition per score.
Relative.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT
from coca_train.positions import _kerple
from coca_train.positions.base import Initial


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A learned power of the distance as penalty."""

    scheme: Literal["kerple_power"]
    shared: bool = Field(
        description="true: all layers have the same numbers, as in the authors' code; false: each layer learns its own"
    )


class Scheme(_kerple.Kerple):
    """r1 scales the power, r2 is its exponent."""

    INITIAL: ClassVar[Mapping[str, Initial]] = {
        "r1": lambda r1_H, generator: r1_H.uniform_(0, 1, generator=generator),
        "r2": lambda r2_H, generator: r2_H.uniform_(0, 2, generator=generator),
    }

    highest_r2 = 2.0  # the authors' bound: a greater power gives no positive definite kernel

    def bias(self, r1_H1: Tensor, r2_H1: Tensor, r_R: Tensor) -> Tensor:
        """Return -r1·r^r2. At r = 0 it is 0 whatever r2, and so is its gradient."""
        return -r1_H1 * r_R**r2_H1
