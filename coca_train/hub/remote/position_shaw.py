"""Shaw et al. (arXiv 1803.02155): learned vectors of the clipped distance, added to keys and values."""

import torch
from torch import nn

from .position_base import Base, LayerBase, distances, looked_up


class Position(Base):
    def forward(self, pos_BT, length):
        return distances(pos_BT).clamp(max=self.settings["max_distance"])


class LayerPosition(LayerBase):
    def __init__(self, config):
        super().__init__(config)
        rows = self.settings["max_distance"] + 1
        self.keys, self.values = (nn.Parameter(torch.empty(rows, self.head_dim)) for _ in range(2))

    def forward(self, attention, q, k, tables):
        products_BHTR = torch.einsum("bthd,rd->bhtr", q, self.keys)
        return q, k, looked_up(products_BHTR, tables) * self.head_dim**-0.5

    def values_of(self, weights, tables):
        by_distance = weights.new_zeros(*weights.shape[:-1], self.values.shape[0])
        index = tables[:, None].expand(weights.shape[0], weights.shape[1], -1, -1)
        return by_distance.scatter_add(-1, index, weights) @ self.values
