"""xPos (arXiv 2212.10554): RoPE whose pairs fade with distance."""

import torch

from .position_base import Base, LayerBase
from .rotary import rotary_tables, turn_part


class Position(Base):
    def forward(self, pos_BT, length):
        cos, sin, temperature = rotary_tables(self.config.rotary, pos_BT, length)
        width, gamma = cos.shape[-1], self.settings["gamma"]
        j = torch.arange(0, width, 2, dtype=torch.float64, device=pos_BT.device)
        zeta = (j / width + gamma) / (1 + gamma)
        offset = (pos_BT - (pos_BT.min() + pos_BT.max()) // 2).double()[..., None] / self.settings["scale_base"]
        up, down = (torch.cat((p, p), -1).float()[:, :, None] for p in (zeta**offset, zeta**-offset))
        return (cos * up, sin * up, temperature), (cos * down, sin * down, temperature)


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return turn_part(q, *tables[0]), turn_part(k, *tables[1]), None
