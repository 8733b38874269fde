"""No positions: the causal mask is all there is."""

from .position_base import Base, LayerBase


class Position(Base):
    pass


class LayerPosition(LayerBase):
    pass
