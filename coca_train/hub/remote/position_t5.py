"""T5 (arXiv 1910.10683): one learned number per head and bucket of distances."""

import torch
from torch import nn

from .position_base import Base, LayerBase, buckets, distances


class Position(Base):
    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(self.settings["n_buckets"], self.model["n_heads"]))

    def forward(self, pos_BT, length):
        bucket_R = buckets(self.settings["n_buckets"], self.settings["max_distance"]).to(pos_BT.device)
        bucket_BTT = bucket_R[distances(pos_BT).clamp(max=self.settings["max_distance"])]
        return self.table[bucket_BTT].permute(0, 3, 1, 2).float()


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return q, k, tables
