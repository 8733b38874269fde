"""TUPE-R (arXiv 2006.15595): untied absolute positions and T5's buckets."""

import torch
from torch import nn

from .position_base import Base, LayerBase, buckets, distances


class Position(Base):
    def __init__(self, config):
        super().__init__(config)
        settings, model = self.settings, self.model
        n_kv_heads = model["n_kv_heads"] or model["n_heads"]
        self.p = nn.Parameter(torch.empty(settings["max_len"], model["d_model"]))
        self.u_q = nn.Parameter(torch.empty(model["n_heads"] * self.head_dim, model["d_model"]))
        self.u_k = nn.Parameter(torch.empty(n_kv_heads * self.head_dim, model["d_model"]))
        self.table = nn.Parameter(torch.empty(settings["n_buckets"], model["n_heads"]))

    def forward(self, pos_BT, length):
        p_BTC, last = self.p[pos_BT], self.settings["max_distance"]
        bucket_R = buckets(self.settings["n_buckets"], last).to(pos_BT.device)
        bias = self.table[bucket_R[distances(pos_BT).clamp(max=last)]].permute(0, 3, 1, 2).float()
        query, key = (y.unflatten(-1, (-1, self.head_dim)) for y in (p_BTC @ self.u_q.T, p_BTC @ self.u_k.T))
        return query, key, bias


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        query, key, bias = tables
        query, key = (y.expand(q.shape[0], -1, -1, -1).to(q.dtype) for y in (query, key))
        return torch.cat((q, query), -1) * 2**-0.5, torch.cat((k, key), -1), bias
