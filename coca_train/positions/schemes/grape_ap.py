"""GRAPE-AP, additive along the path (Zhang et al., arXiv 2512.07805): a bias that sums what a query makes of every
token between key and query.

    score(m, n) = q_m · k_n / √D + s_h·Σ_{l = n+1 … m} log σ(p_m · R(-l) p̂_l / P),   p = W_p x of each head, P = 8

s_h are ALiBi's slopes, W_p is learned in every layer. R(-l) turns all pairs of features by -l radians, p̂ is p over its
root mean square. As in the released code p_m is neither turned nor normalised, so scores depend on positions, not on
distances alone; no rotation besides.

What is not seen counts for nothing (other documents, tokens beyond a window). The cache keeps p with key and value, P
numbers per head.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA; FlexAttention cannot sum along the
keys what depends on the query. Memory O(T). Cost: a product of width P and a sum along the keys of every tile, and each
tile once more in the backward pass.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions.base import (
    AttentionShape,
    Hook,
    LayerPosition,
    Pairs,
    Position,
    PositionedQK,
    Projections,
    ScoreMod,
)
from coca_train.positions.schemes.alibi import slopes
from coca_train.positions.token_positions import Positions

EPS = 1e-6  # added to the mean square


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A bias along the path."""

    scheme: Literal["grape_ap"]
    width: int = Field(
        ge=2, multiple_of=2, description="numbers of each head that a token is judged by, P; the paper: 8"
    )


def walk(pairs: Pairs, carry_BHt1: Tensor) -> tuple[Tensor, Tensor]:
    """Add the edges between key and query. Carried: those of the tiles nearer to the query."""
    p_BHtP, turned_BHsP = pairs.queries[0].transpose(1, 2), pairs.keys[0].transpose(1, 2)
    slope_H = pairs.parameters[0]
    edge_BHts = F.logsigmoid(p_BHtP @ turned_BHsP.mT) * slope_H[:, None, None]
    if pairs.seen_B1ts is not None:
        edge_BHts = torch.where(pairs.seen_B1ts, edge_BHts, 0.0)
    # Running sums from the right, as in fox.py: a key's own edge is not between it and the query.
    from_key_BHts = edge_BHts.flip(-1).cumsum(-1).flip(-1)
    after_key_BHts = F.pad(from_key_BHts[..., 1:], (0, 1))
    return pairs.scores_BHts + after_key_BHts + carry_BHt1, carry_BHt1 + from_key_BHts[..., :1]


WALK = Hook(walk, carried=1, per_head=(0,))


class Layer(LayerPosition):
    """The judgements of one layer."""

    settings: Settings
    tokens_per_head = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.path = nn.Linear(shape.d_model, shape.n_heads * settings.width, bias=False)

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor]:
        """Return p of every token, (B, S, H, P), float32 or wider."""
        p_BSHP = self.path(x_BSC).unflatten(-1, (-1, self.settings.width))
        return (p_BSHP.to(torch.promote_types(p_BSHP.dtype, torch.float32)),)

    def forward(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tensor,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Leave queries and keys as they are; return the hook with p of the queries and the turned p of all keys."""
        (p_BSHP,), pos_BS11 = tokens, tables[..., None, None]
        unit_BSHP = p_BSHP * (p_BSHP.square().mean(-1, keepdim=True) + EPS).rsqrt() / self.settings.width
        cos, sin = pos_BS11.cos(), pos_BS11.sin()
        a, b = unit_BSHP.chunk(2, -1)
        turned_BSHP = torch.cat((a * cos + b * sin, b * cos - a * sin), -1)
        slope_H = slopes(self.shape.n_heads, q_BTHD.device)[project.heads.query]
        own = ScoreMod(WALK, (slope_H.to(p_BSHP.dtype),), (p_BSHP[:, -q_BTHD.shape[1] :],), (turned_BSHP,))
        return super().forward(position, q_BTHD, k_BSGK, tables, project, tokens)._replace(score_mod=own)


class Scheme(Position):
    """Tokens in between that a query lets pass or not."""

    relative = False
    carries = True
    layer_class = Layer

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tensor:
        """Return the positions of all keys, float32 (B, S)."""
        return keys.pos_BT.to(torch.float32)
