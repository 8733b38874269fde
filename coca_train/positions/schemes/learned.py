"""Learned absolute positions (Gehring et al., arXiv 1705.03122; GPT-2): x_m + table[m], once, at the embeddings.

Path: any fused kernel, on the CPU and on CUDA. Memory and cost: max_len·C parameters, one addition of (B, T, C).
Not relative. A position without a row is an error: nothing was learned about it.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Position
from coca_train.positions.token_positions import Positions
from coca_train.runtime.errors import UserError


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Learned absolute position embedding."""

    scheme: Literal["learned"]
    max_len: int = Field(gt=0, description="rows of the table: the longest window there will ever be [tokens]")


class Scheme(Position):
    """One trained vector per position, added to the token embedding."""

    settings: Settings

    relative = False
    bidirectional = True
    by_pairs = False

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        # a module of its own: its forward is where a sharded engine (ZeRO 3) lends the weights
        self.table = nn.Embedding(settings.max_len, shape.d_model)

    @property
    def max_positions(self) -> int | None:
        """Rows of the table."""
        return self.settings.max_len

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """Add the rows of the table. Raises UserError (E-POS-04) beyond it."""
        check_max_len(positions, self.settings.max_len, self.settings.scheme)
        return x_BTC + self.table(positions.pos_BT).to(x_BTC.dtype)


def check_max_len(positions: Positions, max_len: int, scheme: str) -> None:
    """Raise UserError (E-POS-04) when a position has no row in a table of `max_len` rows, 0 to max_len - 1.

    Refused, not clipped: with the last row for all positions that follow, the numbers would look like results.
    """
    if (last := positions.last) >= max_len:
        raise UserError(
            f"E-POS-04 position.max_len={max_len}: {scheme} has no row for position {last}; its table is learned and "
            f"ends at position {max_len - 1}. Fix: train with position.max_len={last + 1} or more, or take windows of "
            f"at most {max_len} tokens"
        )
