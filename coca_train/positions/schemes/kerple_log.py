"""KERPLE, logarithmic (Chi et al., arXiv 2205.09921): a bias that falls ever more slowly with distance.

    b(h, r) = -r1_h · log(1 + r2_h · r),   r = m - n,   r1, r2 >= 0.01

Each layer learns r1 and r2, one pair per head, starting at U(0, 2) and U(0, 1) like the released code
(there bias_p and bias_a), and held above 0.01 (positions/_kerple.py).

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances takes O(T·H) memory and T·H logarithms per layer. Cost: one addition per score. Relative.
"""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT
from coca_train.positions import _kerple
from coca_train.positions.base import Initial

INITIAL: dict[str, Initial] = {
    "r1": lambda r1_H, generator: r1_H.uniform_(0, 2, generator=generator),
    "r2": lambda r2_H, generator: r2_H.uniform_(0, 1, generator=generator),
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """No hyper-parameters: everything is learned."""

    scheme: Literal["kerple_log"]


class Layer(_kerple.Layer):
    """One layer's r1 and r2."""

    def bias(self, r1_H1: Tensor, r2_H1: Tensor, r_R: Tensor) -> Tensor:
        """-r1·log(1 + r2·r)."""
        return -r1_H1 * torch.log1p(r2_H1 * r_R)


class Scheme(_kerple.Distances):
    """A learned logarithmic penalty on distance."""

    layer_class = Layer
