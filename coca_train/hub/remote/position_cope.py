"""CoPE (arXiv 2405.18719): positions are counts of the gates that a query opens."""

import torch
from torch import nn

from .position_base import Base, LayerBase


class Position(Base):
    pass


class LayerPosition(LayerBase):
    rewrites = True

    def __init__(self, config):
        super().__init__(config)
        self.e = nn.Parameter(torch.empty(self.settings["n_positions"], self.head_dim))

    def scores(self, scores, shown, x, q_BTHD, tables):
        gates = torch.where(shown, scores.sigmoid(), 0.0)
        count = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.e) - 1)
        by_count = (q_BTHD.transpose(1, 2) @ self.e.T).to(scores.dtype)
        below, above = (by_count.gather(-1, at.long()) for at in (count.floor(), count.ceil()))
        return scores + torch.lerp(below, above, count - count.floor())
