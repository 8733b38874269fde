"""KERPLE, logarithmic (Chi et al., arXiv 2205.09921): a bias that falls ever more slowly with distance.

    b(h, r) = -r1_h · log(1 + r2_h · r),   r = m - n,   r1, r2 >= 0.01

Each layer learns r1 and r2, one pair per head, starting at U(0, 2) and U(0, 1) like the released code
(there bias_p and bias_a), and held above 0.01 (positions/_held.py).

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances takes O(T·H) memory and T·H logarithms per layer. Cost: one addition per score. Relative.
"""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions._held import held
from coca_train.positions.base import (
    AttentionShape,
    Initial,
    LayerPosition,
    Mapped,
    Position,
    Projections,
    Terms,
    n_distances,
)

LOWEST = 0.01  # the authors' bound on both parameters

INITIAL: dict[str, Initial] = {
    "r1": lambda r1_H, generator: r1_H.uniform_(0, 2, generator=generator),
    "r2": lambda r2_H, generator: r2_H.uniform_(0, 1, generator=generator),
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """No hyper-parameters: everything is learned."""

    scheme: Literal["kerple_log"]


class Layer(LayerPosition):
    """One layer's r1 and r2."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.r1 = nn.Parameter(torch.empty(shape.n_heads))
        self.r2 = nn.Parameter(torch.empty(shape.n_heads))

    def forward(
        self, position: Position, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tensor, project: Projections
    ) -> Mapped:
        """The bias of each distance, float32 or wider."""
        r1_H1, r2_H1 = held(self.r1, LOWEST)[:, None], held(self.r2, LOWEST)[:, None]
        return Mapped(q_BTHD, k_BSGK, Terms(distance_HR=-r1_H1 * torch.log1p(r2_H1 * tables)))


class Scheme(Position):
    """A learned logarithmic penalty on distance."""

    layer_class = Layer

    def forward(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> Tensor:
        """The distances r_R, float32."""
        return torch.arange(n_distances(pos_BT, pos_BS), dtype=torch.float32, device=pos_BT.device)
