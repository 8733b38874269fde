"""The one contract of this project: what attention needs from a position scheme.

A scheme is a `Position` (one per model) and a `LayerPosition` (one per attention layer). Every hook
of both is the identity; a scheme overrides what it needs, and attention calls all of them.

What a scheme does to the scores it says in one of three ways, the cheapest that can say it (a linear one has products
in place of scores, `PositionedQK.divisor`):

rotate   queries and keys become others, and the dot product stays one: any fused kernel;
Terms    tables over the distance: data that each kernel reads in its own way;
Hook     code: for a tile of pairs, their scores, positions and inputs of the layer -> scores.

Shape legend: B batch, T queries, S keys, t queries and s keys of a tile, H query heads, G key/value heads, D head_dim,
R distances, P projected key width, K cached key width, E dot-product width (all three chosen by the scheme),
C d_model, N numbers carried.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from coca_train.config.schema import ModelConfig
from coca_train.positions import SchemeSettings
from coca_train.positions.token_positions import Positions

if TYPE_CHECKING:
    from coca_train.positions.hugging_face import Rotation

# (config key, what is wrong and the rule, one action that fixes it); `Settings.problems(model)` returns a list.
Problem = tuple[str, str, str]

# How a parameter starts: fills the tensor in place, all randomness from the generator.
Initial = Callable[[Tensor, torch.Generator], object]

# A key projection's weight (G·D, C), and G, to the narrower (G·P, C) that a scheme projects with.
Narrow = Callable[[Tensor, int, SchemeSettings], Tensor]  # (a row per feature, key heads, settings)


class AttentionShape(NamedTuple):
    """What a scheme may know about the attention it serves."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    max_seq_len: int  # the training window [tokens]
    attention_multiplier: float | None = None  # factor of q·k; None: 1 / √D
    scores_alone: bool = True  # the softmax is over q'·k' as it is: neither model.score_scale nor a learned sink
    bidirectional: bool = False  # a query sees keys that come later, so distances m - n may be negative

    @classmethod
    def of(cls, model: ModelConfig, max_seq_len: int) -> "AttentionShape":
        """Return the shape of a model's attention."""
        head_dim, n_kv_heads = model.head_dim or model.d_model // model.n_heads, model.n_kv_heads or model.n_heads
        alone = model.score_scale == "none" and not model.learned_sink
        return cls(model.n_heads, n_kv_heads, head_dim, model.d_model, max_seq_len, model.attention_multiplier, alone)


class Terms(NamedTuple):
    """Tables that a scheme adds to q'·k' / √D. Each has a row for each distance r = m - n from 0 on, or, where
    attention is bidirectional, as many for -r below: 2R + 1 rows, 0 in the middle. Distances beyond use the last row.

    They are data, not code, so that each kernel can read them in its own way (a matrix, shifted products, a score_mod).
    """

    distance_HR: Tensor | None = None  # score += b[h, r], float32
    query: tuple[Tensor, Tensor] | None = None  # (q_BTHD, e_RHD): score += q_m · e_r / √D; H may be 1 in e
    key: tuple[Tensor, Tensor] | None = None  # (k_BSGD, e_RHD): score += k_n · e_r / √D; H may be 1 in e
    value_RD: Tensor | None = None  # out_m += Σ_n α(m, n) · p[r], shared by the heads


NO_TERMS = Terms()


class Pairs(NamedTuple):
    """A tile of pairs as a hook receives it: some queries and some keys, in the order of the text."""

    scores_BHts: Tensor  # q'·k' / √D and the terms, float32 or wider
    seen_B1ts: Tensor | None  # which pairs are seen; None: all of them
    pos_Bt: Tensor  # integer positions that the scheme sees; B may be 1, as below
    pos_Bs: Tensor
    parameters: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]  # (B, t, …) each
    keys: tuple[Tensor, ...]  # (B, s, …) each
    scale_B1t1: Tensor | None = None  # by which scores were multiplied (model.logit_scale); None: one

    @property
    def distance_Bts(self) -> Tensor:
        """m - n of every pair; 0 for keys that come later."""
        return (self.pos_Bt[:, :, None] - self.pos_Bs[:, None, :]).clamp(min=0)


class Pair(NamedTuple):
    """One pair, as FlexAttention gives it: integer tensors without dimensions."""

    batch: Tensor
    head: Tensor
    query: Tensor  # index among the T queries
    query_key: Tensor  # index of the query's own token among the S keys
    key: Tensor  # index among the S keys
    distance: Tensor  # m - n as the scheme sees it; 0 for keys that come later


Scores = Callable[[Pairs, Tensor], tuple[Tensor, Tensor]]  # (pairs, carry_BHtN) -> (scores_BHts, carry_BHtN)
Rest = Callable[[tuple[Tensor, ...], Tensor], Tensor]  # (parameters, carry_BHtN) -> (B, H, t, 1), B and t may be 1


class Hook(NamedTuple):
    """How a scheme rewrites scores that no table over the distance can hold. One object for good: a constant of the
    scheme's module, since compiled forms are kept by it.

    scores(pairs, carry_BHtN) -> (scores_BHts, carry_BHtN): a pure function of its arguments, which runs on tensors
    of the meta device too. A pair's new score may depend on the pair itself, on all its heads (`mixes_heads`), and on
    the keys between key and query (`carried`). What it makes of a pair that is not seen is thrown away, but must be
    finite; in the carry such a pair counts for nothing.

    carried: N. Tiles of keys are visited from the nearest to the farthest, and each receives N numbers for every
    query and head that sum up the tiles before: zeros at first, then what the last call returned. 0: pairs do not
    depend on others.

    pointwise(score_mod): the same thing for one pair, `(score, pair) -> score`, for FlexAttention; None where heads are
    mixed, where the carry depends on scores, or where it would be slower than a loop over tiles. It looks up a tensor
    that learns no more than once, since torch has no gradient of two look-ups.

    per_head: which parameters have a row for each head, by number: of them a rank that has some heads gets its own.

    rest(parameters, carry_BHtN): the score of one more key, without a value, that every query sees: attention that goes
    nowhere. The carry is that of all keys.
    """

    scores: Scores
    carried: int = 0
    mixes_heads: bool = False
    pointwise: Callable[["ScoreMod"], Callable[[Tensor, Pair], Tensor]] | None = None
    per_head: tuple[int, ...] = ()
    rest: Rest | None = None


class ScoreMod(NamedTuple):
    """A hook and its inputs in one layer. The inputs are results, never a parameter itself (see `Position`). What has
    heads has them third: queries those of the queries, keys those of queries or keys; where heads see different keys
    (patterns/s2.py) a group of them gets its own."""

    by: Hook
    parameters: tuple[Tensor, ...] = ()  # whole in every tile
    queries: tuple[Tensor, ...] = ()  # (B, T, …) each: a tile gets those of its queries
    keys: tuple[Tensor, ...] = ()  # (B, S, …) each: a tile gets those of its keys


class PositionedQK(NamedTuple):
    """Queries and keys of a layer with positions applied, and what is added to their scores."""

    q_BTHE: Tensor
    k_BSGE: Tensor
    terms: Terms
    score_mod: ScoreMod | None = None
    # (q_BTHK, k_BSGK) of linear attention: weights are q'·k' over the sum of these products, without a softmax.
    divisor: tuple[Tensor, Tensor] | None = None


def without_positions(layer: nn.Module, inputs: tuple[Any, ...], mapped: PositionedQK) -> PositionedQK:
    """Return queries and keys as a layer's position received them: a forward hook that switches it off."""
    _, q_BTHD, k_BSGK, *_ = inputs
    return PositionedQK(q_BTHD, k_BSGK, NO_TERMS)


class Heads(NamedTuple):
    """The heads that this process computes: all, or one rank's part where ranks share a sequence."""

    query: slice
    key: slice  # of the key/value heads, each of them `repeats` times
    repeats: int


ALL_HEADS = Heads(slice(None), slice(None), 1)


class Projections(NamedTuple):
    """The layer's W_Q and W_K, for schemes that project positions too: x_..C -> the heads that this process
    computes."""

    query: Callable[[Tensor], Tensor]  # (..., C) -> (..., H, D)
    key: Callable[[Tensor], Tensor]  # (..., C) -> (..., G, K)
    heads: Heads = ALL_HEADS


class LayerPosition(nn.Module):
    """The part of a scheme that each attention layer has for itself. The base class has no parameters.

    Its parameters are read in its forward, which returns results: a sharded engine (ZeRO 3) gathers them for that call.
    Parameters that `tokens` reads belong to a submodule, whose call gathers them.
    """

    tokens_per_head = False  # what `tokens` gives has the query heads as its third dimension
    # What the forward in hand adds to the loss in training, a scalar [nats per target], of the heads that this process
    # computes. Left only while `is_asked`: a forward that is computed again for the backward pass would leave a graph
    # that nobody takes.
    penalty: Tensor | None = None
    is_asked = False

    def __init__(self, settings: SchemeSettings, shape: AttentionShape) -> None:
        super().__init__()
        self.settings = settings  # a scheme declares its own type
        self.shape = shape

    def reduce_keys(self, k_BSGP: Tensor) -> Tensor:
        """Map projected keys to the width that the cache holds, (B, S, G, K)."""
        return k_BSGP

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor, ...]:
        """Compute what a hook needs of every key's token besides key and value, (B, S, …) each: from the layer's
        normalised input, once per token, and cached with the key."""
        return ()

    def terms(
        self, position: "Position", q_BTHD: Tensor, k_BSGK: Tensor, tables: object, project: Projections
    ) -> Terms:
        """Return what this layer adds to the scaled scores. Queries and keys are not yet rotated."""
        return position.terms(tables)

    def score_mod(self, q_BTHD: Tensor, tables: object, tokens: tuple[Tensor, ...]) -> ScoreMod | None:
        """Return the hook that rewrites the scores, with its inputs. tokens: what `tokens` returned for all keys."""
        return None

    def forward(
        self,
        position: "Position",
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: object,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Apply positions to queries and cached keys, and return what is added to their scores. A sharded engine
        gathers the layer's parameters for this call, so all methods above except `tokens` are called in it."""
        terms = self.terms(position, q_BTHD, k_BSGK, tables, project)
        return PositionedQK(*position.rotate(q_BTHD, k_BSGK, tables), terms, self.score_mod(q_BTHD, tables, tokens))


class Position(nn.Module):
    """Base scheme: every hook is the identity, so this class alone is `nope`.

    Calling the module (once per forward) gives the tables that all layers share. Parameters that all layers
    share are used there and in `embed` only, and the tables hold results, never the parameters themselves:
    a sharded engine (ZeRO 3) lends them for the duration of that call.
    """

    relative = True  # scores depend on m - n only; the contract test holds a scheme to it
    has_effect = True  # False only for nope; every run checks it before training (models/certificate.py)
    sees_positions = True  # scores depend on positions; False: at most on the tokens in between
    only_documents = False  # positions say where a document begins, and nothing else
    bidirectional = False  # it can tell, or ignore, how far later a key comes (AttentionShape.bidirectional)
    by_pairs = True  # positions act on pairs of tokens, so an attention pattern may place far pairs elsewhere
    carries = False  # scores depend on the tokens in between: all that a query sees must be one stretch, in one view
    # `rotate` is all it does; k' follows from key, position and length, and can be cached. Its tables are tuples of
    # tensors (B, T, …), a row for each position.
    caches_rotated_keys = False
    mixes_heads = False  # its hook does: no rank can have some of the heads only
    linear = False  # its weights are products without a softmax (attention/linear.py): a state sums up the text
    projects_distances = False  # every layer projects a row of its tables for each distance there is
    layer_class: type[LayerPosition] = LayerPosition
    # How parameters start that do not start at N(0, init_std), by the last part of their names.
    INITIAL: ClassVar[Mapping[str, Initial]] = {}
    narrow_key: ClassVar[Narrow | None] = None  # the start of a key projection narrower than D; None: it is drawn

    def __init__(self, settings: SchemeSettings, shape: AttentionShape) -> None:
        super().__init__()
        self.settings = settings  # a scheme declares its own type
        self.shape = shape

    @property
    def key_dim(self) -> int:
        """K: width of one key head in the cache, and of the keys that `rotate` receives."""
        return self.shape.head_dim

    @property
    def projected_key_dim(self) -> int:
        """P: width of one head of the key projection; larger than K where the layers reduce keys."""
        return self.key_dim

    @property
    def max_positions(self) -> int | None:
        """Number of positions (rows of a learned table); None: unlimited."""
        return None

    @property
    def embeds(self) -> bool:
        """Whether it adds to the token embeddings, which all layers share."""
        return type(self).embed is not Position.embed

    @property
    def halo(self) -> int:
        """How many tokens before a key its `tokens` belong together with, which a cache then keeps too."""
        return 0

    @property
    def memory_len(self) -> int:
        """Hidden states of the previous segment that each layer also attends to in training [tokens]."""
        return 0

    def bidirectional_problems(self) -> list[Problem]:
        """Return why queries cannot see keys that come later; empty: they can, where the shape says so."""
        if self.bidirectional:
            return []
        text = f"{self.settings.scheme} looks back only, and a query sees the keys that come later too"
        fix = "write attention_pattern=causal, or choose a scheme for both directions, such as position=rope"
        return [("attention_pattern.name", text, fix)]

    @classmethod
    def to_transformers(cls, settings: SchemeSettings, head_dim: int) -> "Rotation | None":
        """Return what layers with these settings rotate, as transformers describes it; None: nothing. Raises NotTheSame
        where its classes compute something else."""
        from coca_train.positions.hugging_face import NotTheSame

        raise NotTheSame(f"position scheme {settings.scheme}")

    def layer(self) -> LayerPosition:
        """Build the part of one new layer."""
        return self.layer_class(self.settings, self.shape)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """Add absolute positions to the token embeddings."""
        return x_BTC

    def __call__(self, queries: Tensor | Positions, keys: Tensor | Positions, length: int) -> object:
        """Call `forward`; positions that come as tensors are measured first, as those of one document."""
        measured = Positions.of(queries)
        return super().__call__(measured, measured if keys is queries else Positions.of(keys), length)

    def forward(self, queries: Positions, keys: Positions, length: int) -> object:
        """Return angles, biases and the like, shared by all layers of one forward.

        queries, keys: their positions; one object where they are the same. length: the sequence length that dynamic
        frequencies adapt to [tokens].
        """
        return None

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: object) -> tuple[Tensor, Tensor]:
        """Map queries and cached keys to what the dot product takes: q_BTHE, k_BSGE."""
        return q_BTHD, k_BSGK

    def select_heads(self, tables: object, heads: Heads) -> object:
        """Return the tables that `rotate` takes, for some of the heads. Tables without heads, and `Terms`, stay as they
        are."""
        return tables

    def terms(self, tables: object) -> Terms:
        """Return what is added to the scaled scores, the same in every layer: the tables, where they are `Terms`."""
        return tables if isinstance(tables, Terms) else NO_TERMS
