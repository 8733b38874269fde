"""KERPLE, logarithmic (arXiv 2205.09921): a bias with two learned numbers per head."""

import torch
from torch import nn

from .position_base import Base, LayerBase, distances


class Position(Base):
    def forward(self, pos_BT, length):
        return distances(pos_BT)[:, None].float()


class LayerPosition(LayerBase):
    def __init__(self, config):
        super().__init__(config)
        self.r1, self.r2 = (nn.Parameter(torch.empty(self.n_heads)) for _ in range(2))

    def forward(self, attention, q, k, tables):
        r1 = self.r1.float().clamp(min=0.01)[:, None, None]
        r2 = self.r2.float().clamp(min=0.01, max=None)[:, None, None]
        return q, k, -r1 * torch.log1p(r2 * tables)
