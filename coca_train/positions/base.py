"""The one contract of this project: what attention needs from a position scheme.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim,
K cached key width, E dot-product width (both chosen by the scheme), C d_model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

# (score, batch, head, query index, key index) -> score; FlexAttention's signature.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# (config key, what is wrong and the rule, one action that mends it); `Settings.problems(model)` returns a list.
Problem = tuple[str, str, str]


class AttentionShape(NamedTuple):
    """What a scheme may know about the attention it serves."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_seq_len: int  # the training window [tokens]


class Position(nn.Module):
    """Base scheme: every hook is the identity, so this class alone is `nope`.

    Attention calls every hook unconditionally and never asks which scheme is active.
    `tables` runs once per forward; its result is handed to `rotate` in every layer.
    """

    relative = True  # scores depend on m - n only; the contract test holds a scheme to it
    has_effect = True  # False only for nope; every run checks it before training (models/certificate.py)

    def __init__(self, settings: Any, shape: AttentionShape) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape

    @property
    def key_dim(self) -> int:
        """K: width of one head of the key projection, which is also what the cache holds."""
        return self.shape.head_dim

    def embed(self, x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
        """Add absolute positions to the token embeddings."""
        return x_BTC

    def tables(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> Any:
        """Angles and the like, shared by all layers of one forward.

        pos_BT, pos_BS: integer positions of queries and keys. length: the sequence length that
        dynamic frequencies adapt to [tokens].
        """
        return None

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
        """Map queries and cached keys to what the dot product takes: q_BTHE, k_BSGE."""
        return q_BTHD, k_BSGK

    def score_mod(self, pos_BT: Tensor, pos_BS: Tensor, tables: Any) -> ScoreMod | None:
        """A bias on the scaled scores, or None (also when `tables` says that rotate carries it)."""
        return None
