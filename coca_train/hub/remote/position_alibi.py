"""ALiBi (arXiv 2108.12409): the score loses slope_h per token of distance."""

from .position_base import Base, LayerBase, alibi_slopes, distances


class Position(Base):
    def forward(self, pos_BT, length):
        return -alibi_slopes(self.model["n_heads"], pos_BT.device) * distances(pos_BT)[:, None]


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return q, k, tables
