"""FoX, the Forgetting Transformer (Lin et al., arXiv 2503.02130): a forget gate in softmax attention.

    score(m, n) = q_m · k_n / √D + Σ_{l = n+1 … m} log f_l,   f_l = σ(w_f · x_l + b_f)     for each head

x_l is the layer's normalised input, w_f and b_f (a row per query head) are learned in every layer, and no other code of
positions is there, as in the paper's main models. log f is float32. w_f starts like every matrix, b_f at 0, as in the
released code: every gate at about one half, so that a head first sees a few tokens and learns how long to remember.
With a `gate_bias` of 5 it is the data-dependent ALiBi of x-transformers, whose heads first see hundreds; with w_f and
b_f negated it is CABLE (arXiv 2503.08067).

Positions are never looked at: the sum runs over the tokens between key and query, so scores stay when all positions
move. What is not seen counts for nothing (other documents, tokens beyond a window). The cache keeps log f with key
and value, one number per head. Sums are taken from the query backwards, so no large ones are subtracted; only
FlexAttention's form does that, like the paper's kernel: at 16 000 tokens of f = 1/2 a float32 sum is known to 1e-3.

Path: `blocked` on the CPU, tiles with a carry beyond 1024 keys; FlexAttention on CUDA. Memory O(T), forward and
backward. Cost: a sum along the keys of every tile, and each tile once more in the backward pass.
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Hook, LayerPosition, Pair, Pairs, Position, ScoreMod


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Gates that are learned."""

    scheme: Literal["fox"]
    gate_bias: float = Field(
        default=0.0,
        description="added to b_f, which starts at 0. 0: gates start at one half, the released code's; 5: at 0.993, "
        "data-dependent ALiBi's",
    )


def forget(pairs: Pairs, carry_BHt1: Tensor) -> tuple[Tensor, Tensor]:
    """Add the log gates between key and query. Carried: the log gates of the tiles nearer to the query."""
    log_f_BHts = pairs.keys[0].transpose(1, 2)[:, :, None]  # one row for all queries while all of them see every key
    if pairs.seen_B1ts is not None:
        log_f_BHts = torch.where(pairs.seen_B1ts, log_f_BHts, 0.0)
    # Running sums from the right: from each key to the end of the tile. A key's own gate is not between it and the
    # query, so its sum is that of its right neighbour; the whole tile's goes on to the tiles further away.
    from_key_BHts = log_f_BHts.flip(-1).cumsum(-1).flip(-1)
    behind_key_BHts = F.pad(from_key_BHts[..., 1:], (0, 1))
    return pairs.scores_BHts + behind_key_BHts + carry_BHt1, carry_BHt1 + from_key_BHts[..., :1]


def pointwise(score_mod: ScoreMod) -> Callable[[Tensor, Pair], Tensor]:
    """Return the same hook for one pair, by sums from the first token on: documents and windows leave no gap between
    two tokens that see each other."""
    until_BSH = score_mod.keys[0].cumsum(1)
    before_BSH = -until_BSH  # a tensor of its own: see `Hook.pointwise`
    # As strided: where a compiled block computes them once more, Inductor (2.13) leaves the order of their elements
    # open, and then has no address for what the backward kernel looks up.
    until_BSH, before_BSH = (x.as_strided(x.shape, x.stride()) for x in (until_BSH, before_BSH))

    def forget_pair(score: Tensor, pair: Pair) -> Tensor:
        until_query = until_BSH[pair.batch, pair.query_key, pair.head]
        return score + (until_query + before_BSH[pair.batch, pair.key, pair.head])

    return forget_pair


FORGET = Hook(forget, carried=1, pointwise=pointwise)


class Layer(LayerPosition):
    """The gates of one layer."""

    settings: Settings
    tokens_per_head = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.gate = nn.Linear(shape.d_model, shape.n_heads)

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor]:
        """Return log f of every token and query head, (B, S, H), float32 or wider."""
        gate_BSH = self.gate(x_BSC)
        wide_BSH = gate_BSH.to(torch.promote_types(gate_BSH.dtype, torch.float32))
        return (F.logsigmoid(wide_BSH + self.settings.gate_bias),)

    def score_mod(self, q_BTHD: Tensor, tables: object, tokens: tuple[Tensor, ...]) -> ScoreMod:
        """Return the hook with the gates of all keys."""
        return ScoreMod(FORGET, keys=tokens)


class Scheme(Position):
    """Tokens that decide how much of the past is forgotten."""

    sees_positions = False
    carries = True
    layer_class = Layer
