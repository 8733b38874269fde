"""The one contract of this project: what attention needs from a position scheme.

A scheme is a `Position` (one per model) and a `LayerPosition` (one per attention layer). Every hook
of both is the identity; a scheme overrides what it needs, and attention calls all of them.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, R distances,
K cached key width, E dot-product width (both chosen by the scheme), C d_model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# (config key, what is wrong and the rule, one action that mends it); `Settings.problems(model)` returns a list.
Problem = tuple[str, str, str]

# How a parameter starts: fills the tensor in place, all randomness from the generator.
Initial = Callable[[Tensor, torch.Generator], object]


class AttentionShape(NamedTuple):
    """What a scheme may know about the attention it serves."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    max_seq_len: int  # the training window [tokens]


class Terms(NamedTuple):
    """What a scheme adds to q'·k' / √D. Everything depends on the distance r = max(m - n, 0) through a table
    over r; distances beyond its last row take the last row.

    Data, not code: so each kernel reads it in the way that suits it (a matrix, shifted products, a score_mod).
    """

    distance_HR: Tensor | None = None  # score += b[h, r], float32
    query: tuple[Tensor, Tensor] | None = None  # (q_BTHD, e_RHD): score += q_m · e_r / √D; H may be 1 in e
    key: tuple[Tensor, Tensor] | None = None  # (k_BSGD, e_RHD): score += k_n · e_r / √D; H may be 1 in e
    value_RD: Tensor | None = None  # out_m += Σ_n α(m, n) · p[r], shared by the heads


class Mapped(NamedTuple):
    """What a layer's queries and keys have become."""

    q_BTHE: Tensor
    k_BSGE: Tensor
    terms: Terms


class Projections(NamedTuple):
    """The layer's own W_Q and W_K, for schemes that send positions through them: x_..C -> heads."""

    query: Callable[[Tensor], Tensor]  # (..., C) -> (..., H, D)
    key: Callable[[Tensor], Tensor]  # (..., C) -> (..., G, K)


class LayerPosition(nn.Module):
    """The part of a scheme that each attention layer has for itself. This class alone: nothing of its own."""

    def __init__(self, settings: Any, shape: AttentionShape) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape

    def forward(
        self, position: "Position", q_BTHD: Tensor, k_BSGK: Tensor, tables: Any, project: Projections
    ) -> Mapped:
        """Queries and cached keys to what the dot product takes, and what is added to it."""
        return Mapped(*position.rotate(q_BTHD, k_BSGK, tables), position.terms(tables))


class Position(nn.Module):
    """Base scheme: every hook is the identity, so this class alone is `nope`.

    Calling the module (once per forward) gives the tables that all layers share. Parameters that all layers
    share are used there and in `embed` only, and the tables hold results, never the parameters themselves:
    a sharded engine (ZeRO 3) lends them for the duration of that call.
    """

    relative = True  # scores depend on m - n only; the contract test holds a scheme to it
    has_effect = True  # False only for nope; every run checks it before training (models/certificate.py)
    by_pairs = True  # positions act on pairs of tokens, so a visibility may place far pairs elsewhere
    layer_class: type[LayerPosition] = LayerPosition

    def __init__(self, settings: Any, shape: AttentionShape) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape

    @property
    def key_dim(self) -> int:
        """K: width of one head of the key projection, which is also what the cache holds."""
        return self.shape.head_dim

    @property
    def max_positions(self) -> int | None:
        """Positions there are (a learned table's rows); None: no end."""
        return None

    @property
    def memory_len(self) -> int:
        """Hidden states of the previous segment that each layer attends to as well, in training [tokens]."""
        return 0

    def layer(self) -> LayerPosition:
        """A new layer's own part."""
        return self.layer_class(self.settings, self.shape)

    def embed(self, x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
        """Add absolute positions to the token embeddings."""
        return x_BTC

    def forward(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> Any:
        """Angles, biases and the like, shared by all layers of one forward.

        pos_BT, pos_BS: integer positions of queries and keys. length: the sequence length that
        dynamic frequencies adapt to [tokens].
        """
        return None

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        """Map queries and cached keys to what the dot product takes: q_BTHE, k_BSGE."""
        return q_BTHD, k_BSGK

    def terms(self, tables: Any) -> Terms:
        """What is added to the scaled scores, the same in every layer."""
        return Terms()


def n_distances(pos_BT: Tensor, pos_BS: Tensor) -> int:
    """How many rows a table over all distances of these queries and keys has: the largest distance + 1."""
    return max(0, int(pos_BT.max() - pos_BS.min())) + 1
