"""Stick-breaking attention (Tan et al., arXiv 2410.17980): the nearest key that fits takes its share, the next of what
is left.

    α(m, n) = σ(a_mn)·Π_{n<k<m} (1 - σ(a_mk)),   a_mn = q_m · k_n / √D,   rest_m = 1 - Σ_n α(m, n)

No softmax: the rest goes nowhere, and all of it where a document begins. In logarithms α is softmax's own form,
log α(m, n) = a_mn - Σ_{k=n…m-1} log(1 + exp(a_mk)), with one more key without a value at log rest_m = -Σ_k log(1 +
exp(a_mk)): then the denominator is one. The query's own key is not seen, or is (`sees_itself`), as in a variant of the
paper's code.

Positions are never looked at: recency alone orders the keys, so scores stay when all positions move. What is not seen
breaks nothing off (other documents, tokens beyond a window). The cache holds keys and values alone.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA; FlexAttention cannot sum along the
keys what depends on scores. Memory O(T). Cost: a softplus and a sum along the keys of every tile, and each tile once
more in the backward pass.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions.base import Hook, LayerPosition, Pairs, Position, ScoreMod

NEVER = -1e30  # the score of a key that is not seen: its share is zero to the last bit


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Shares of what nearer keys have left."""

    scheme: Literal["stick_breaking"]
    sees_itself: bool = Field(description="a query's own key is the first to take its share; the paper: false")


def break_off(pairs: Pairs, carry_BHt1: Tensor) -> tuple[Tensor, Tensor]:
    """Return log α. Carried: minus the logarithm of what the tiles nearer to the query have left."""
    broken_BHts = F.softplus(pairs.scores_BHts)
    if pairs.seen_B1ts is not None:
        broken_BHts = torch.where(pairs.seen_B1ts, broken_BHts, 0.0)
    until_BHts = broken_BHts.flip(-1).cumsum(-1).flip(-1) + carry_BHt1
    return pairs.scores_BHts - until_BHts, until_BHts[..., :1]


def break_off_others(pairs: Pairs, carry_BHt2: Tensor) -> tuple[Tensor, Tensor]:
    """As above, of all keys but the query's own: the nearest that it sees. Carried too: whether that came already."""
    seen_B1ts = pairs.seen_B1ts
    if seen_B1ts is None:
        seen_B1ts = pairs.scores_BHts.new_ones(1, 1, *pairs.scores_BHts.shape[2:], dtype=torch.bool)
    count_B1ts = seen_B1ts.to(torch.int32).flip(-1).cumsum(-1).flip(-1)
    met_BHt1 = carry_BHt2[..., 1:]
    own_BHts = (seen_B1ts & (count_B1ts == 1)) & (met_BHt1 == 0)
    scores_BHts, left_BHt1 = break_off(pairs._replace(seen_B1ts=seen_B1ts & ~own_BHts), carry_BHt2[..., :1])
    met_BHt1 = torch.maximum(met_BHt1, (count_B1ts[..., :1] > 0).to(met_BHt1.dtype))
    return scores_BHts.masked_fill(own_BHts, NEVER), torch.cat((left_BHt1, met_BHt1), -1)


def left(parameters: tuple[Tensor, ...], carry_BHtN: Tensor) -> Tensor:
    """Return log rest."""
    return -carry_BHtN[..., :1]


BREAK_OFF = Hook(break_off, carried=1, rest=left)
BREAK_OFF_OTHERS = Hook(break_off_others, carried=2, rest=left)


class Layer(LayerPosition):
    """A layer without parameters of its own."""

    settings: Settings

    def score_mod(self, q_BTHD: Tensor, tables: object, tokens: tuple[Tensor, ...]) -> ScoreMod:
        """Return the hook."""
        return ScoreMod(BREAK_OFF if self.settings.sees_itself else BREAK_OFF_OTHERS)


class Scheme(Position):
    """Keys that take their share one after the other, from the query backwards."""

    sees_positions = False
    carries = True
    layer_class = Layer
