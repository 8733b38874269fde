"""PoPE, polar coordinate position embedding (arXiv 2509.10534): content in the length, position in the angle.

    score(m, n) = Σ_{c<D} sp(q_c)·sp(k_c)·cos((n - m)·w_c + δ_c) / √D,   w_c = base^(-c/D),   sp(x) = log(1 + eˣ)

RoPE adds the angle between q and k, which is content, to that of the distance; here no content has an angle, as in
strict CoCA, and every feature has a frequency of its own, D of them where RoPE has D/2. δ, one for each head and
frequency, is learned in every layer, within [-2π, 0]. It starts uniform there: at 0, where the released code may begin,
a step upwards leaves the interval, and then no gradient ever comes again. It is kept as one long vector, which weight
decay leaves alone. Exactly relative.

`rope_scaling` scales the D frequencies as it would those of a head twice as wide, so every scaling applies.

Path: any fused kernel, with q' and k' of width 2D: sp(q)·(cos, sin)(m·w - δ), sp(k)·(cos, sin)(n·w). Memory O(T·D),
twice that of RoPE; the cache holds keys unrotated, as large as RoPE's. δ turns the query, where the authors' code turns
the key, so that key heads may serve several query heads.
"""

import math
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import rope_scaling, rotary
from coca_train.positions.base import NO_TERMS, AttentionShape, LayerPosition, PositionedQK, Problem, Projections
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Lengths of content, angles of position."""

    scheme: Literal["pope"]
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse frequencies that do not fit twice the width of a head."""
        return self.rope_scaling.problems(2 * (model.head_dim or model.d_model // model.n_heads))


class Angles(NamedTuple):
    """Cosine and sine of every position and frequency, (B, T, 1, D), float32; and the temperature."""

    cos_BT1D: Tensor
    sin_BT1D: Tensor
    temperature: float


class Tables(NamedTuple):
    """The angles of queries and keys."""

    query: Angles
    key: Angles


class Layer(LayerPosition):
    """The phases of one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.delta = nn.Parameter(torch.empty(shape.n_heads * shape.head_dim))

    def forward(
        self,
        position: "Scheme",
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tables,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Return q' with its phases, and k'. E = 2D."""
        cos, sin, temperature = tables.query
        wide = torch.promote_types(self.delta.dtype, torch.float32)
        delta_HD = self.delta.view(-1, self.shape.head_dim)[project.heads.query].to(wide).clamp(-2 * math.pi, 0)
        cos_HD, sin_HD = delta_HD.cos(), delta_HD.sin()
        turned = Angles(cos * cos_HD + sin * sin_HD, sin * cos_HD - cos * sin_HD, temperature)
        return PositionedQK(polar(q_BTHD, turned), polar(k_BSGK, tables.key), NO_TERMS)


def polar(x_BTHD: Tensor, angles: Angles) -> Tensor:
    """Return (sp(x)·cos, sp(x)·sin), (B, T, H, 2D) in the dtype of x; in between float32 or wider."""
    # sp(x) = -log σ(-x): of torch's softplus the compiler takes the gradient's strides for others than they are.
    length_BTHD = -F.logsigmoid(-x_BTHD.to(torch.promote_types(x_BTHD.dtype, torch.float32))) * angles.temperature
    return torch.cat((length_BTHD * angles.cos_BT1D, length_BTHD * angles.sin_BT1D), -1).to(x_BTHD.dtype)


class Scheme(rotary.Frequencies):
    """Turns lengths by positions alone."""

    features = 2
    bidirectional = True
    layer_class = Layer
    INITIAL = MappingProxyType({"delta": lambda x, generator: x.uniform_(-2 * math.pi, 0, generator=generator)})

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape, self.features * shape.head_dim)

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the angles at a sequence length [tokens], which dynamic frequencies adapt to."""
        spectrum = self.spectrum(length, queries.pos_BT.device)
        query = self._angles(queries, spectrum)
        return Tables(query, query if keys is queries else self._angles(keys, spectrum))

    @staticmethod
    def _angles(positions: Positions, spectrum: rope_scaling.Spectrum) -> Angles:
        angle_BT1D = rotary.angles(positions.pos_BT, spectrum)[:, :, None]
        return Angles(angle_BT1D.cos(), angle_BT1D.sin(), spectrum.temperature)
