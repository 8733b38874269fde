"""Sandwich (arXiv 2212.10356): the product of two sinusoidal embeddings as a bias, compressed per head."""

import torch

from .position_base import Base, LayerBase, distances


class Position(Base):
    def forward(self, pos_BT, length):
        wide = {"dtype": torch.float64, "device": pos_BT.device}
        width, n_heads = self.settings["d_bar"], self.model["n_heads"]
        inv_freq_J = 10000.0 ** (-torch.arange(0, width, 2, **wide) / width)
        r_BTT = distances(pos_BT)
        r_R = torch.arange(int(r_BTT.max()) + 1, **wide)
        sum_R = (r_R[:, None] * inv_freq_J).cos().sum(-1) - width / 2
        compression_H11 = (torch.arange(1, n_heads + 1, **wide) * 8 / n_heads)[:, None, None]
        return (sum_R[r_BTT][:, None] / compression_H11).float()


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return q, k, tables
