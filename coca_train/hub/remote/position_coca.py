"""CoCA (arXiv 2309.08646): t = ReLU(W_T x), one value per pair.

slack (Eq. 11): score = sum of q * (R_m q) * (R_n (t, t)). strict (Eq. 18): |q_j|^2 t_j cos((m - n) theta_j).
"""

import torch

from .position_base import Base, LayerBase
from .rotary import rotary_tables, turn


class Position(Base):
    @staticmethod
    def key_dim(config, head_dim):
        return head_dim // 2 if config.coca_train["position"]["t_width"] == "half" else head_dim

    def forward(self, pos_BT, length):
        return rotary_tables(self.config.rotary, pos_BT, length)


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        cos, sin, _ = tables
        t = k.float()
        if self.settings["t_width"] == "full_mean":
            a, b = t.chunk(2, -1)
            t = (a + b) / 2
        t = t.relu()
        if self.settings["variant"] == "slack":
            query, key = q.float() * turn(q, cos, sin), turn(torch.cat((t, t), -1), cos, sin)
        else:
            a, b = q.float().chunk(2, -1)
            cos_J, sin_J = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]
            square = a * a + b * b
            query, key = (torch.cat((y * cos_J, y * sin_J), -1) for y in (square, t))
        return query.to(q.dtype), key.to(k.dtype), None
