"""Transformer-XL's relative positions (Dai et al., arXiv 1901.02860, section 3.3, forms a to d).

    score(m, n) = ((q_m + u) · k_n + (q_m + v) · W_R s_r) / √D          r = m - n
    s_r = (sin(r·θ_0), …, sin(r·θ_{C/2-1}), cos(r·θ_0), …, cos(r·θ_{C/2-1})),   θ_i = 10000^(-2i/C)

Each layer learns u, v (H, D) and W_R (H·D, C); s is fixed, as wide as the model (C), and made once per forward.
Segment recurrence (section 3.2) is the other half of the method: in training each layer also attends to
`memory_len` hidden states of the segment before, without a gradient into them. Positions go on
through the memory, so it only makes r larger.

Path: blocked on the CPU; on CUDA FlexAttention up to 512 distances (it looks up the products (q + v) · W_R s made
before), blocked beyond, as there is a row for every distance of the text. Memory O(T·block) for the scores, O(T·C)
for the table. Cost: a second dot product per pair, so up to twice the scores of plain attention, and one more
projection, R·C·H·D per layer for R distances, in each step of cached decoding too.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions._waves import waves, width_problems
from coca_train.positions.base import (
    AttentionShape,
    LayerPosition,
    Mapped,
    Position,
    Problem,
    Projections,
    Terms,
    n_distances,
)

BASE = 10000.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Relative positions by sinusoids, and segment recurrence."""

    scheme: Literal["transformer_xl"]
    memory_len: int = Field(
        ge=0,
        description="[tokens] hidden states of the previous segment each layer also attends to in training; 0 = none",
    )

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Combinations that cannot be computed."""
        return width_problems(model, "transformer_xl")


class Layer(LayerPosition):
    """One layer's u, v and W_R."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.u = nn.Parameter(torch.empty(shape.n_heads, shape.head_dim))
        self.v = nn.Parameter(torch.empty(shape.n_heads, shape.head_dim))
        self.w_r = nn.Parameter(torch.empty(shape.n_heads * shape.head_dim, shape.d_model))

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tensor,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> Mapped:
        """K = E = D. tables: s_RC."""
        dtype = q_BTHD.dtype
        r_RHD = F.linear(tables.to(dtype), self.w_r.to(dtype)).unflatten(-1, self.u.shape)
        return Mapped(q_BTHD + self.u.to(dtype), k_BSGK, Terms(query=(q_BTHD + self.v.to(dtype), r_RHD)))


class Scheme(Position):
    """Sinusoids of the distance, projected in each layer, and two learned biases of the query."""

    layer_class = Layer

    @property
    def memory_len(self) -> int:
        """Hidden states of the previous segment in reach of each layer [tokens]."""
        return self.settings.memory_len

    def forward(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> Tensor:
        """s_RC for every distance in hand; more rows than queries when a memory or a cache stands in front."""
        r_R = torch.arange(n_distances(pos_BT, pos_BS), device=pos_BT.device)
        return waves(r_R, BASE, self.shape.d_model)
