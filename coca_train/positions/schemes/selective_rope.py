"""Selective RoPE (Movahedi et al., arXiv 2511.17388): every token says how far each pair of features turns.

    score(m, n) = R(Φ_m) q_m · R(Φ_n) k_n / √D,   Φ_t = Σ_{τ≤t} conv(W_up W_down x̄_τ)

Φ has a number for each pair j of each head, which turns by Φ_j·theta^(-j/J). x̄ is the layer's normalised input, of
which each of H slices is scaled to length 1; the projection has a low rank and no bias, the convolution is causal, by
channel, with four taps. Turns go both ways, so a score depends on the tokens between key and query, and on positions in
one respect: sums and the convolution start again from zero with each document. The optional gate is not here.

The released layers have as many key heads as query heads; phases are those of key heads here, which groups of queries
share. The cache keeps with key and value what the projection has in the middle, `rank` numbers.

Path: any fused kernel, O(T·D) memory. The tables are the layer's own: phases in float64, cos and sin in float32 of G
heads of every token.
"""

from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import rotary
from coca_train.positions._phases import Documents, convolve, of_queries, rotation, sums_before
from coca_train.positions.base import (
    AttentionShape,
    Initial,
    LayerPosition,
    Position,
    PositionedQK,
    Problem,
    Projections,
)
from coca_train.positions.rope_scaling import base_inv_freq
from coca_train.positions.token_positions import DeviceCopies, Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Turns that tokens choose."""

    scheme: Literal["selective_rope"]
    theta: float = Field(gt=1, description="rotary base: pair j turns theta^(-2j/D) radians per unit of its phase")
    rank: int = Field(gt=0, description="of the projection that phases come from; the paper: 32")
    taps: int = Field(gt=0, description="tokens of the causal convolution of phases; the paper: 4; 1: none")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse an odd head, and a model that heads do not divide."""
        issues = rotary.width_problems(model, 1.0)
        if model.d_model % model.n_heads:
            wrong = f"{model.n_heads} heads do not divide {model.d_model} features into slices"
            near = max(1, model.d_model // model.n_heads) * model.n_heads
            issues.append(("model.d_model", wrong, f"write model.d_model={near}"))
        return issues


class Tables(NamedTuple):
    """theta_J: angles per unit of the phases [radians], float64."""

    theta_J: Tensor
    documents: Documents


class Low(nn.Module):
    """The first half of the projection."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__()
        self.down, self.n_slices = nn.Parameter(torch.empty(settings.rank, shape.d_model)), shape.n_heads

    def forward(self, x_BSC: Tensor) -> Tensor:
        """Return (B, S, rank), float32 or wider."""
        wide = torch.promote_types(x_BSC.dtype, torch.float32)
        slices = F.normalize(x_BSC.to(wide).unflatten(-1, (self.n_slices, -1)), dim=-1)
        return slices.flatten(-2) @ self.down.to(wide).T


class Layer(LayerPosition):
    """The phases of one layer."""

    settings: Settings

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        n_phases = shape.n_kv_heads * shape.head_dim // 2
        self.low = Low(settings, shape)
        self.up = nn.Parameter(torch.empty(n_phases, settings.rank))
        self.mix = nn.Parameter(torch.empty(settings.taps, n_phases))

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor, ...]:
        """Return what phases come from, (B, S, rank)."""
        return (self.low(x_BSC),)

    def phases(self, low_BSR: Tensor, documents: Documents) -> Tensor:
        """Return the phases of the key heads, float64 (B, S, G·J)."""
        wide_BSN = low_BSR @ self.up.to(low_BSR.dtype).T
        step_BSN = convolve(wide_BSN, self.mix.to(low_BSR.dtype), documents.place_BS)
        return sums_before(step_BSN, documents) + step_BSN

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tables,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Rotate queries by the phases of their key heads, and keys by theirs. K = E = D."""
        (low_BSR,), heads, repeats = tokens, project.heads, self.shape.n_heads // self.shape.n_kv_heads
        phase_BSGJ = self.phases(low_BSR, tables.documents).unflatten(-1, (-1, len(tables.theta_J)))
        turn = rotation(phase_BSGJ * tables.theta_J, low_BSR.dtype)

        def selected(turn: rotary.CosSin, times: int, some: slice) -> rotary.CosSin:
            cos, sin = (x.repeat_interleave(times, 2)[:, :, some] for x in (turn.cos_BT1R, turn.sin_BT1R))
            return turn._replace(cos_BT1R=cos, sin_BT1R=sin)

        q_BTHD = rotary.apply(q_BTHD, selected(of_queries(turn, q_BTHD.shape[1]), repeats, heads.query))
        k_BSGK = rotary.apply(k_BSGK, selected(turn, heads.repeats, heads.key))
        return super().forward(position, q_BTHD, k_BSGK, tables, project, tokens)


def _uniform(fan_dim: int) -> Initial:
    """Return torch's start of a layer without bias: U(±1/√n), n numbers going into each of its outputs."""
    return lambda weight, generator: weight.uniform_(
        -(weight.shape[fan_dim] ** -0.5), weight.shape[fan_dim] ** -0.5, generator=generator
    )


class Scheme(Position):
    """Tokens that say how far each pair turns."""

    settings: Settings
    carries = True
    only_documents = True
    layer_class = Layer
    INITIAL = MappingProxyType({"down": _uniform(1), "up": _uniform(1), "mix": _uniform(0)})

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.theta_J = base_inv_freq(settings.theta, shape.head_dim, torch.device("cpu"))
        self._theta = DeviceCopies()

    @property
    def halo(self) -> int:
        """Taps before a token's own."""
        return self.settings.taps - 1

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the frequencies, and the documents of the keys."""
        return Tables(self._theta.on(self.theta_J, keys.pos_BT.device), Documents.of(keys.pos_BT))
