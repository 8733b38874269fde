"""CoPE, contextual positions (Golovneva et al., arXiv 2405.18719, and the code of its appendix).

    g_mn = σ(q_m · k_n / √D),   p_mn = min(Σ_{j = n … m} g_mj, n_positions - 1)
    score(m, n) = q_m · k_n / √D + (1 - w)·q_m · e[⌊p⌋] + w·q_m · e[⌈p⌉],   w = p - ⌊p⌋

Each query counts the keys back to n that it opens its gate to, itself included. Each layer learns e (n_positions, D),
shared by its heads. As in the appendix, q·e is not divided by √D (the authors' later code divides it: another scale of
e). That code starts e at zero; here it starts like every matrix, so that it has an effect from the first step on.

Positions are never looked at, so scores stay when all of them move. What is not seen is not counted (other documents,
tokens beyond a window). A key cache holds nothing more: gates follow from queries and keys.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA; FlexAttention cannot sum along
the keys. Memory O(T·n_positions) per head for q·e, computed once per layer, and O(T) for tiles beyond 1024 keys. Cost:
a sigmoid, a sum along the keys and two look-ups for each pair and head, and each tile once more in the backward pass.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Hook, LayerPosition, Pairs, Position, ScoreMod


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Positions that count what a query looks for."""

    scheme: Literal["cope"]
    n_positions: int = Field(ge=2, description="vectors for counts 0, 1, …; larger counts take the last (paper: 64)")


def count(pairs: Pairs, carry_BHt1: Tensor) -> tuple[Tensor, Tensor]:
    """Add q·e at the count of each key. Carried: the gates of the tiles nearer to the query."""
    gate_BHts = pairs.scores_BHts.sigmoid()
    if pairs.seen_B1ts is not None:
        gate_BHts = torch.where(pairs.seen_B1ts, gate_BHts, 0.0)
    # From the query backwards, as tiles come: what the nearer ones have counted is carried in, and no long sum is
    # subtracted from another. A pair that is not seen has gate 0: it counts for nothing, in this tile and all further.
    count_BHts = gate_BHts.flip(-1).cumsum(-1).flip(-1) + carry_BHt1
    by_count_BHtP = pairs.queries[0].transpose(1, 2)
    place_BHts = count_BHts.clamp(max=by_count_BHtP.shape[-1] - 1)
    below_BHts, above_BHts = place_BHts.floor(), place_BHts.ceil()
    weight_BHts = place_BHts - below_BHts.detach()  # the gradient of the place goes through the weight alone
    low_BHts, high_BHts = (by_count_BHtP.gather(-1, index.long()) for index in (below_BHts, above_BHts))
    return pairs.scores_BHts + torch.lerp(low_BHts, high_BHts, weight_BHts), count_BHts[..., :1]


COUNT = Hook(count, carried=1)


class Layer(LayerPosition):
    """The vectors of the counts in one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.e = nn.Parameter(torch.empty(settings.n_positions, shape.head_dim))

    def score_mod(self, q_BTHD: Tensor, tables: object, tokens: tuple[Tensor, ...]) -> ScoreMod:
        """Compute q·e of every count, float32 or wider."""
        by_count_BTHP = q_BTHD @ self.e.to(q_BTHD.dtype).T
        wide = torch.promote_types(q_BTHD.dtype, torch.float32)
        return ScoreMod(COUNT, queries=(by_count_BTHP.to(wide),))


class Scheme(Position):
    """Queries that count the tokens they care for."""

    sees_positions = False
    carries = True
    layer_class = Layer
