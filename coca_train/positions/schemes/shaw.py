"""Relative position representations (Shaw et al., arXiv 1803.02155, Eq. 3 and 4), the causal half.

    score(m, n) = q_m · (k_n + a_r) / √D          r = min(m - n, max_distance)
    out_m       = Σ_n α(m, n) (v_n + b_r)

Each layer learns a = `keys` and b = `values`, (max_distance + 1, D) both, shared by its heads. The paper's tables
have 2·max_distance + 1 rows; the rows of the future are left out, as no causal query sees them.

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
    """The vectors of one layer for every distance 0 … max_distance."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.keys = nn.Parameter(torch.empty(settings.max_distance + 1, shape.head_dim))
        self.values = nn.Parameter(torch.empty(settings.max_distance + 1, shape.head_dim))

    def terms(self, position: Position, q_BTHD: Tensor, k_BSGK: Tensor, tables: object, project: Projections) -> Terms:
        """Pass copies of the vectors: the kernel reads them after ZeRO 3 has freed the parameters."""
        keys_RD, values_RD = (table.to(q_BTHD.dtype, copy=True) for table in (self.keys, self.values))
        return Terms(query=(q_BTHD, keys_RD[:, None, :]), value_RD=values_RD)


class Scheme(Position):
    """Learned vectors of the clipped distance, added to keys and values."""

    layer_class = Layer
