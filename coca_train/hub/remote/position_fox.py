"""FoX (arXiv 2503.02130): scores lose the log gates of the tokens between key and query."""

import torch
from torch import nn
from torch.nn import functional as F

from .position_base import Base, LayerBase


class Position(Base):
    pass


class LayerPosition(LayerBase):
    rewrites = True

    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Linear(self.model["d_model"], self.n_heads)

    def scores(self, scores, shown, x, q_BTHD, tables):
        log_f = F.logsigmoid(self.gate(x).float()).transpose(1, 2)[:, :, None]
        kept = torch.where(shown, log_f, 0.0).flip(-1).cumsum(-1).flip(-1)  # from each key to the query
        return scores + F.pad(kept[..., 1:], (0, 1))
