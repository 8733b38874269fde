"""Dual Chunk Attention (An et al., arXiv 2402.17463; ChunkLlama): positions that never leave the training window.

The text is cut into chunks of c = chunk_size - local_window tokens, and key n is placed at n mod c. A query m is placed

    at m mod c                       for keys of its own chunk,
    at min(m mod c + c, cap)         for those of the chunk before: neighbours across the border stay neighbours,
    at min(2c - 1, cap)              for those of all earlier ones,

so no distance is larger than cap, and nothing is trained. cap is chunk_size in the released code and one less in the
paper. Three views under one softmax. Every key has one place in all of them, so a cache holds rotated keys.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Chunks, Place, Rule, View, at
from coca_train.attention.patterns._pairs import not_by_pairs, not_relative
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Chunks of a text. ValueError where the local window leaves no chunk, or positions leave the training window."""

    name: Literal["dual_chunk"]
    window: Positive = Field(description="the training window, L [tokens]")
    chunk_size: Positive | None = Field(default=None, description="largest position [tokens]; null: 3/4 L")
    local_window: Positive | None = Field(
        default=None, description="what chunk_size leaves for neighbours across a border [tokens]; null: L/8"
    )
    cap: Literal["code", "paper"] = Field(
        default="code", description="largest distance. code: chunk_size; paper: chunk_size - 1"
    )

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"local_window ({self.local}) must be smaller than chunk_size ({self.largest})")
        if self.largest > self.window:
            raise ValueError(f"chunk_size ({self.largest}) must be at most window ({self.window})")

    @property
    def largest(self) -> int:
        return self.chunk_size or max(2, 3 * self.window // 4)

    @property
    def local(self) -> int:
        return self.local_window or max(1, self.window // 8)

    @property
    def chunk(self) -> int:
        return self.largest - self.local

    @property
    def reach(self) -> int:
        return self.largest - (self.cap == "paper")


class Rules(AttentionPattern):
    """The query's own chunk, the one before, and all earlier ones."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        size, cap = self.settings.chunk, self.settings.reach
        keys = Place(modulo=size)
        return (
            View(Rule(chunks=Chunks(size, 0, 0)), keys, keys),
            View(Rule(chunks=Chunks(size, 1, 1)), Place(modulo=size, most=cap - size, add=size), keys),
            View(Rule(chunks=Chunks(size, 2)), at(min(2 * size - 1, cap)), keys),
        )

    def length(self, length: int) -> int:
        """Return the largest position and one, in a text of this length."""
        return min(length, self.settings.reach + 1)

    def problems(self, position: Position) -> list[Problem]:
        pairs = not_by_pairs(self.settings, position, needs_positions=True)
        return pairs or not_relative(self.settings, position)
