"""RoPE (arXiv 2104.09864)."""

from .position_base import Base, LayerBase
from .rotary import rotary_tables, turn_part


class Position(Base):
    def forward(self, pos_BT, length):
        return rotary_tables(self.config.rotary, pos_BT, length)


class LayerPosition(LayerBase):
    def forward(self, attention, q, k, tables):
        return turn_part(q, *tables), turn_part(k, *tables), None
