"""GRAPE-A, additive and gated by the key (Zhang et al., arXiv 2512.07805): ALiBi whose slope each key chooses.

    score(m, n) = q_m · k_n / √D - (m - n)·s_h·sp(ω_h)·sp(û_h · k_n / √D),   û = u/|u|,   sp(x) = log(1 + eˣ)

s_h are ALiBi's slopes. u and ω, a vector and a number for each head, are learned in every layer; sp(ω) starts at 1. k_n
is the key as it is cached, after its norm where there is one. Exactly relative, and no rotation besides.

Path: its hook, in `blocked` on the CPU and as a score_mod of FlexAttention on CUDA. Memory O(T): a number for every key
and query head, computed again from the cached keys at each step.
"""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions.base import (
    AttentionShape,
    Hook,
    Initial,
    LayerPosition,
    Pair,
    Pairs,
    Position,
    PositionedQK,
    Projections,
    ScoreMod,
)
from coca_train.positions.schemes.alibi import slopes


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """No hyper-parameters: everything is learned."""

    scheme: Literal["grape_a"]


def fade(pairs: Pairs, carry: Tensor) -> tuple[Tensor, Tensor]:
    """Take off the distance times the key's slope."""
    slope_BH1s = pairs.keys[0].transpose(1, 2)[:, :, None]
    return pairs.scores_BHts - pairs.distance_Bts[:, None] * slope_BH1s, carry


def pointwise(score_mod: ScoreMod) -> Callable[[Tensor, Pair], Tensor]:
    """Return the same for one pair."""
    (slope_BSH,) = score_mod.keys

    def fade_pair(score: Tensor, pair: Pair) -> Tensor:
        return score - pair.distance * slope_BSH[pair.batch, pair.key, pair.head]

    return fade_pair


FADE = Hook(fade, pointwise=pointwise)


class Layer(LayerPosition):
    """The gates of one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.u = nn.Parameter(torch.empty(shape.n_heads, shape.head_dim))
        self.omega = nn.Parameter(torch.empty(shape.n_heads))

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: object,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Leave queries and keys as they are; return the hook with the slope of every key and query head."""
        wide, heads = torch.promote_types(k_BSGK.dtype, torch.float32), project.heads.query
        u_HD = F.normalize(self.u[heads].to(wide), dim=-1) / math.sqrt(self.shape.head_dim)
        u_GND = u_HD.unflatten(0, (k_BSGK.shape[2], -1))
        gate_BSH = F.softplus(torch.einsum("bsgd,gnd->bsgn", k_BSGK.to(wide), u_GND).flatten(2))
        slope_H = slopes(self.shape.n_heads, q_BTHD.device)[heads] * F.softplus(self.omega[heads].to(wide))
        mapped = super().forward(position, q_BTHD, k_BSGK, tables, project, tokens)
        return mapped._replace(score_mod=ScoreMod(FADE, keys=(gate_BSH * slope_H,)))


class Scheme(Position):
    """A distance that weighs as much as the key says."""

    layer_class = Layer
    INITIAL: ClassVar[Mapping[str, Initial]] = {
        "omega": lambda omega_H, generator: omega_H.fill_(math.log(math.e - 1)),  # where sp is 1
    }
