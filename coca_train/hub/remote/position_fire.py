"""FIRE (arXiv 2310.04418): a learned function of interpolated distances."""

from .position_base import Base, Interpolated, LayerBase


class Position(Base):
    def forward(self, pos_BT, length):
        return pos_BT


class LayerPosition(LayerBase):
    def __init__(self, config):
        super().__init__(config)
        self.function = Interpolated(self.n_heads, self.settings["mlp_width"], self.settings["threshold"])

    def forward(self, attention, q, k, tables):
        return q, k, self.function(tables)
