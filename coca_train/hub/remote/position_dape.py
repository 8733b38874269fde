"""DAPE (arXiv 2405.14722): a static bias that adapts to the scores of all heads."""

import torch
from torch import nn
from torch.nn import functional as F

from .position_base import Base, Interpolated, LayerBase, alibi_slopes, distances


class Kerple(nn.Module):
    def __init__(self, n_heads):
        super().__init__()
        self.r1, self.r2 = (nn.Parameter(torch.empty(n_heads)) for _ in range(2))

    def forward(self, pos_BT):
        r1, r2 = (r.float().clamp(min=0.01)[:, None, None] for r in (self.r1, self.r2))
        return -r1 * torch.log1p(r2 * distances(pos_BT)[:, None])


class Alibi(nn.Module):
    def __init__(self, n_heads):
        super().__init__()
        self.n_heads = n_heads

    def forward(self, pos_BT):
        return -alibi_slopes(self.n_heads, pos_BT.device) * distances(pos_BT)[:, None]


class Position(Base):
    def forward(self, pos_BT, length):
        return pos_BT


class LayerPosition(LayerBase):
    rewrites = True

    def __init__(self, config):
        super().__init__(config)
        kind, width = self.settings["bias"], self.settings["mlp_width"]
        if kind == "fire":
            self.bias = Interpolated(self.n_heads, 32, 512.0)
        else:
            self.bias = {"kerple_log": Kerple, "alibi": Alibi}[kind](self.n_heads)
        self.w_in, self.b_in = nn.Parameter(torch.empty(width, 2 * self.n_heads)), nn.Parameter(torch.empty(width))
        self.w_out = nn.Parameter(torch.empty(self.n_heads, width))

    def scores(self, scores, shown, x, q_BTHD, tables):
        bias = self.bias(tables).expand_as(scores)
        both = torch.cat((scores, bias), 1).permute(0, 2, 3, 1)
        hidden = F.leaky_relu(F.linear(both, self.w_in.float(), self.b_in.float()))
        return scores + bias + F.linear(hidden, self.w_out.float()).permute(0, 3, 1, 2)
