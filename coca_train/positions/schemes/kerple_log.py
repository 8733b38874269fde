"""KERPLE, logarithmic (Chi et al., arXiv 2205.09921): a bias that falls ever more slowly with distance.

    b(h, r) = -r1_h · log(1 + r2_h · r),   r = m - n,   r1, r2 >= 0.01

r1 and r2 are learned, one pair per head, starting at U(0, 2) and U(0, 1) like the released code (there bias_p and
bias_a), and held above 0.01 (positions/_kerple.py). As in that code all layers share them: 2·H numbers in a model. With
`shared: false` each layer has a pair per head of its own.

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances takes O(T·H) memory and T·H logarithms, per layer where they share nothing. Cost: one addition per score.
Relative.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT
from coca_train.positions import _kerple
from coca_train.positions.base import Initial


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A learned logarithmic penalty on distance."""

    scheme: Literal["kerple_log"]
    shared: bool = Field(
        description="true: all layers have the same numbers, as in the authors' code; false: each layer learns its own"
    )


class Scheme(_kerple.Kerple):
    """r1 scales the logarithm, r2 the distance inside."""

    INITIAL: ClassVar[Mapping[str, Initial]] = {
        "r1": lambda r1_H, generator: r1_H.uniform_(0, 2, generator=generator),
        "r2": lambda r2_H, generator: r2_H.uniform_(0, 1, generator=generator),
    }

    def bias(self, r1_H1: Tensor, r2_H1: Tensor, r_R: Tensor) -> Tensor:
        """Return -r1·log(1 + r2·r)."""
        return -r1_H1 * torch.log1p(r2_H1 * r_R)
