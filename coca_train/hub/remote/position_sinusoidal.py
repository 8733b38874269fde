"""Sines and cosines of the position, added to the embeddings (arXiv 1706.03762)."""

from .position_base import Base, LayerBase, waves


class Position(Base):
    def embed(self, x, pos_BT):
        return (x + waves(pos_BT, self.settings["theta"], x.shape[-1]) * self.settings["scale"]).to(x.dtype)


class LayerPosition(LayerBase):
    pass
