"""What both forms of KERPLE share (Chi et al., arXiv 2205.09921): two learned numbers per head, in every layer."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from coca_train.positions._held import held
from coca_train.positions.base import (
    AttentionShape,
    LayerPosition,
    Mapped,
    Position,
    Projections,
    Terms,
    n_distances,
)

LOWEST = 0.01  # the authors' bound on both numbers


class Layer(LayerPosition):
    """One layer's r1 and r2, held in their range (positions/_held.py)."""

    highest_r2 = math.inf

    def __init__(self, settings: Any, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.r1 = nn.Parameter(torch.empty(shape.n_heads))
        self.r2 = nn.Parameter(torch.empty(shape.n_heads))

    def bias(self, r1_H1: Tensor, r2_H1: Tensor, r_R: Tensor) -> Tensor:
        """b(h, r) of each head and distance, (H, R)."""
        raise AssertionError("each form has its own")

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tensor,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> Mapped:
        """The bias of each distance, float32 or wider."""
        r1_H1, r2_H1 = held(self.r1, LOWEST)[:, None], held(self.r2, LOWEST, self.highest_r2)[:, None]
        return Mapped(q_BTHD, k_BSGK, Terms(distance_HR=self.bias(r1_H1, r2_H1, tables)))


class Distances(Position):
    """The shared part: the distances themselves."""

    def forward(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> Tensor:
        """r_R, float32."""
        return torch.arange(n_distances(pos_BT, pos_BS), dtype=torch.float32, device=pos_BT.device)
