"""A learned vector for every position, added to the embeddings."""

from torch import nn

from .position_base import Base, LayerBase


class Position(Base):
    def __init__(self, config):
        super().__init__(config)
        self.table = nn.Embedding(self.settings["max_len"], self.model["d_model"])

    def embed(self, x, pos_BT):
        return x + self.table(pos_BT)


class LayerPosition(LayerBase):
    pass
