"""Disentangled attention (arXiv 2006.03654, Eq. 4): content to position and position to content."""

import torch
from torch import nn

from .position_base import Base, LayerBase, distances, looked_up


class Position(Base):
    def __init__(self, config):
        super().__init__(config)
        self.p = nn.Parameter(torch.empty(self.settings["max_distance"] + 1, self.model["d_model"]))

    def forward(self, pos_BT, length):
        return distances(pos_BT).clamp(max=self.settings["max_distance"]), self.p


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        r_BTT, p_RC = tables
        key_RHD = attention.k(p_RC).unflatten(-1, (self.n_kv_heads, self.head_dim))
        key_RHD = key_RHD.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        query_RHD = attention.q(p_RC).unflatten(-1, (self.n_heads, self.head_dim))
        k_BTHD = k.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2)
        to_position = looked_up(torch.einsum("bthd,rhd->bhtr", q, key_RHD), r_BTT)
        from_key = torch.einsum("bshd,rhd->bhsr", k_BTHD, query_RHD)
        to_content = looked_up(from_key, r_BTT.transpose(1, 2)).transpose(2, 3)
        return q, k, (to_position + to_content) * self.head_dim**-0.5
