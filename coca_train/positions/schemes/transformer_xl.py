"""Transformer-XL's relative positions (Dai et al., arXiv 1901.02860, section 3.3, forms a to d).

    score(m, n) = ((q_m + u) · k_n + (q_m + v) · W_R s_r) / √D          r = m - n
    s_r = (sin(r·θ_0), …, sin(r·θ_{C/2-1}), cos(r·θ_0), …, cos(r·θ_{C/2-1})),   θ_i = 10000^(-2i/C)

Each layer learns W_R (H·D, C). u and v (H, D) are learned too, and shared by all layers as in the authors' PyTorch code
(r_w_bias and r_r_bias); with `shared: false` each layer has its own, as in their TensorFlow code under untie_r, which
its scripts for WikiText-103 set. s is fixed, as wide as the model (C), and computed once per forward.
Segment recurrence (section 3.2) is the other half of the method: in training each layer also attends to
`memory_len` hidden states of the segment before, without a gradient into them. Positions go on
through the memory, so it only makes r larger.

Path: blocked on the CPU; on CUDA FlexAttention up to 512 distances (it looks up the products (q + v) · W_R s computed
before), blocked beyond, as there is a row for every distance of the text. Memory O(T·block) for the scores, O(T·C)
for the table. Cost: a second dot product per pair, so up to twice the scores of plain attention, and one more
projection, R·C·H·D per layer for R distances, in each step of cached decoding too.
"""

from typing import Literal, NamedTuple

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
    Position,
    PositionedQK,
    Problem,
    Projections,
    Terms,
)
from coca_train.positions.token_positions import Positions, distances

BASE = 10000.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Relative positions by sinusoids, and segment recurrence."""

    scheme: Literal["transformer_xl"]
    shared: bool = Field(
        description="true: all layers have the same u and v, as in the authors' PyTorch code; false: each layer learns "
        "its own (untie_r of their TensorFlow code)"
    )
    memory_len: int = Field(
        ge=0,
        description="[tokens] hidden states of the previous segment each layer also attends to in training; 0 = none",
    )

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return width_problems(model, "transformer_xl")


class Tables(NamedTuple):
    """The sinusoids of every distance, and what all layers share: float32 or wider, so that their gradients add up over
    the layers before any cast; None: nothing."""

    s_RC: Tensor
    u_HD: Tensor | None
    v_HD: Tensor | None


def _biases(shape: AttentionShape) -> tuple[nn.Parameter, nn.Parameter]:
    """Create u and v."""
    u, v = (nn.Parameter(torch.empty(shape.n_heads, shape.head_dim)) for _ in range(2))
    return u, v


class Layer(LayerPosition):
    """W_R of one layer, and its u and v where they are not shared."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        if not settings.shared:
            self.u, self.v = _biases(shape)
        self.w_r = nn.Parameter(torch.empty(shape.n_heads * shape.head_dim, shape.d_model))

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tables,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Add u and v to the queries and project the sinusoids. K = E = D."""
        dtype = q_BTHD.dtype
        heads = project.heads.query
        r_RHD = F.linear(tables.s_RC.to(dtype), self.w_r.to(dtype)).unflatten(-1, (self.shape.n_heads, -1))[:, heads]
        u_HD, v_HD = (self.u, self.v) if tables.u_HD is None or tables.v_HD is None else (tables.u_HD, tables.v_HD)
        u_HD, v_HD = u_HD[heads].to(dtype), v_HD[heads].to(dtype)
        return PositionedQK(q_BTHD + u_HD, k_BSGK, Terms(query=(q_BTHD + v_HD, r_RHD)))


class Scheme(Position):
    """Sinusoids of the distance, projected in each layer, and two learned biases of the query."""

    settings: Settings

    bidirectional = True
    layer_class = Layer
    projects_distances = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        if settings.shared:
            self.u, self.v = _biases(shape)

    def bidirectional_problems(self) -> list[Problem]:
        """Refuse a memory, which holds what came before alone."""
        if not self.settings.memory_len:
            return []
        text = "queries see keys on both sides, and a memory of transformer_xl holds what came before"
        return [("attention_pattern.name", text, "write position.memory_len=0, or attention_pattern=causal")]

    @property
    def memory_len(self) -> int:
        """Hidden states of the previous segment that each layer attends to [tokens]."""
        return self.settings.memory_len

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return a row of s for every distance: more than there are queries where a memory or a cache precedes them."""
        r_R = distances(queries, keys, self.shape.bidirectional)
        s_RC = waves(r_R, BASE, self.shape.d_model)
        if not self.settings.shared:
            return Tables(s_RC, None, None)
        dtype = torch.promote_types(self.u.dtype, torch.float32)
        return Tables(s_RC, self.u.to(dtype, copy=True), self.v.to(dtype, copy=True))
