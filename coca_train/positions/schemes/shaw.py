"""Relative position representations (Shaw et al., arXiv 1803.02155, Eq. 3 and 4).

    score(m, n) = q_m · (k_n + a_r) / √D          r = m - n, from -max_distance to max_distance
    out_m       = Σ_n α(m, n) (v_n + b_r)

Each layer learns a = `keys` and b = `values`, shared by its heads. The paper's tables have 2·max_distance + 1 rows, and
so they have where attention is bidirectional; a causal query sees none of the keys that half of them are for, and has
max_distance + 1.

Path: blocked on the CPU and on CUDA, because of b: the weights α are needed by distance, which no fused kernel
gives. Memory O(T·block), forward and backward. Cost: q · a in every tile in addition to q · k, and α · b to α · v, so
twice the products of plain attention; the tables themselves are small.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, LayerPosition, Position, Projections, Terms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Relative position representations."""

    scheme: Literal["shaw"]
    max_distance: int = Field(ge=1, description="distances beyond this share its vectors [tokens]")


class Layer(LayerPosition):
    """The vectors of one layer for every distance."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        n_rows = settings.max_distance * (2 if shape.bidirectional else 1) + 1
        self.keys = nn.Parameter(torch.empty(n_rows, shape.head_dim))
        self.values = nn.Parameter(torch.empty(n_rows, shape.head_dim))

    def terms(self, position: Position, q_BTHD: Tensor, k_BSGK: Tensor, tables: object, project: Projections) -> Terms:
        """Pass copies of the vectors: the kernel reads them after ZeRO 3 has freed the parameters."""
        keys_RD, values_RD = (table.to(q_BTHD.dtype, copy=True) for table in (self.keys, self.values))
        return Terms(query=(q_BTHD, keys_RD[:, None, :]), value_RD=values_RD)


class Scheme(Position):
    """Learned vectors of the clipped distance, added to keys and values."""

    bidirectional = True
    layer_class = Layer
