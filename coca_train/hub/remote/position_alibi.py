"""ALiBi (arXiv 2108.12409): the score loses slope_h per token of distance."""

import math

import torch

from .position_base import Base, LayerBase, distances


class Position(Base):
    def forward(self, pos_BT, length):
        n = self.model["n_heads"]
        below = 2 ** math.floor(math.log2(n))
        slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes += [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)][: n - below]
        slope_H11 = torch.tensor(slopes, dtype=torch.float32, device=pos_BT.device)[:, None, None]
        return -slope_H11 * distances(pos_BT)[:, None]


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return q, k, tables
