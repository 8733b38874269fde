"""GRAPE-M with context, multiplicative (Zhang et al., arXiv 2512.07805): RoPE whose tokens say how far they take it.

    score(m, n) = R(Φ_m) q_m · R(Φ_n) k_n / √D,   Φ_t = Σ_{τ<t} σ((w·x_τ + b) / 16)

Pair j of a head turns by Φ·θ_j, with RoPE's θ_j = theta^(-2j/D). w and b belong to the layer, x is its normalised
input: a token moves all that come after it by less than one position, about 0.4 at the start. So a score depends on the
tokens between key and query, the key among them, and on positions in one respect: sums start again from zero with each
document. GRAPE-M without context is `position/rope_scaling=learned`.

The cache keeps with key and value the rise of each token, one number. Path: any fused kernel, O(T·D) memory. The tables
are the layer's own: cos and sin of T·D numbers each, float32.
"""

import math
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import rotary
from coca_train.positions._phases import Documents, of_queries, rotation, sums_before
from coca_train.positions.base import AttentionShape, LayerPosition, Position, PositionedQK, Problem, Projections
from coca_train.positions.rope_scaling import base_inv_freq
from coca_train.positions.token_positions import DeviceCopies, Positions

START = 1e-3  # softplus of b at the start, as released


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Rotations by summed phases."""

    scheme: Literal["grape_m"]
    theta: float = Field(gt=1, description="rotary base: pair j turns theta^(-2j/D) radians per unit of the phase")
    divisor: float = Field(gt=0, description="divides what a token says before its sigmoid; the paper: 16")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse an odd head."""
        return rotary.width_problems(model, 1.0)


class Tables(NamedTuple):
    """theta_J: angles per unit of the phase [radians], float64."""

    theta_J: Tensor
    documents: Documents


class Rises(nn.Module):
    """What each token adds to the phase of those that come after it."""

    def __init__(self, d_model: int, divisor: float) -> None:
        super().__init__()
        self.weight, self.offset, self.divisor = (
            nn.Parameter(torch.empty(d_model)),
            nn.Parameter(torch.empty(1)),
            divisor,
        )

    def forward(self, x_BSC: Tensor) -> Tensor:
        """Return numbers between 0 and 1, (B, S, 1), float32 or wider."""
        wide = torch.promote_types(x_BSC.dtype, torch.float32)
        said_BS1 = x_BSC.to(wide) @ self.weight.to(wide)[:, None] + self.offset.to(wide)
        return (said_BS1 / self.divisor).sigmoid()


class Layer(LayerPosition):
    """The phases of one layer."""

    settings: Settings

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.rises = Rises(shape.d_model, settings.divisor)

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor, ...]:
        """Return the rise of every token, (B, S, 1)."""
        return (self.rises(x_BSC),)

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tables,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Rotate queries and keys by their phases. K = E = D."""
        (rise_BS1,) = tokens
        turn = rotation(sums_before(rise_BS1, tables.documents)[..., None] * tables.theta_J, rise_BS1.dtype)
        turned = rotary.apply(q_BTHD, of_queries(turn, q_BTHD.shape[1])), rotary.apply(k_BSGK, turn)
        return super().forward(position, *turned, tables, project, tokens)


class Scheme(Position):
    """Tokens that say how far apart others are."""

    settings: Settings
    carries = True
    only_documents = True
    layer_class = Layer
    INITIAL = MappingProxyType({"offset": lambda offset, generator: offset.fill_(math.log(math.expm1(START)))})

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.theta_J = base_inv_freq(settings.theta, shape.head_dim, torch.device("cpu"))
        self._theta = DeviceCopies()

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the frequencies, and the documents of the keys."""
        return Tables(self._theta.on(self.theta_J, keys.pos_BT.device), Documents.of(keys.pos_BT))
