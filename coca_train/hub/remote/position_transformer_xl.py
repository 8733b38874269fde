"""Transformer-XL's relative positions (arXiv 1901.02860): ((q + u) k + (q + v) W_R s_r) / sqrt(D)."""

import torch
from torch import nn

from .position_base import Base, LayerBase, distances, looked_up, waves


class Position(Base):
    def forward(self, pos_BT, length):
        r_BTT = distances(pos_BT)
        return r_BTT, waves(torch.arange(int(r_BTT.max()) + 1, device=pos_BT.device), 10000.0, self.model["d_model"])


class LayerPosition(LayerBase):
    def __init__(self, config):
        super().__init__(config)
        self.u, self.v = (nn.Parameter(torch.empty(self.n_heads, self.head_dim)) for _ in range(2))
        self.w_r = nn.Parameter(torch.empty(self.n_heads * self.head_dim, self.model["d_model"]))

    def forward(self, attention, q, k, tables):
        r_BTT, s_RC = tables
        r_RHD = (s_RC.to(q.dtype) @ self.w_r.T).unflatten(-1, self.u.shape)
        products_BHTR = torch.einsum("bthd,rhd->bhtr", q + self.v, r_RHD)
        return q + self.u, k, looked_up(products_BHTR, r_BTT) * self.head_dim**-0.5
