"""Attention sinks (StreamingLLM, arXiv 2309.17453, section 3.2): the first n_sink tokens and the last `window`.

Positions count inside a cache that holds just these tokens, not in the text: a query that has lost tokens
is at n_sink + window - 1, the sinks stay at 0 ... n_sink - 1, and recent tokens directly follow them.
For a scheme that knows distances only, that is: recent tokens at their true distance, sinks at
min(m, n_sink + window - 1) - n. Decoding takes constant memory and time per token; O(T·(window + n_sink)) in all.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Keep, Place, Rule, View
from coca_train.attention.patterns._pairs import not_by_pairs, not_relative
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The first tokens and the latest ones."""

    name: Literal["sinks"]
    n_sink: Positive = Field(description="first tokens that stay visible; 4 in the paper")
    window: Positive = Field(description="latest tokens that are visible, the query itself included")


class Rules(AttentionPattern):
    """Recent tokens, and sinks beyond them."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        n_sink, window = self.settings.n_sink, self.settings.window
        return (
            View(Rule(window=window)),
            View(Rule(beyond=window, first=n_sink), queries=Place(most=n_sink + window - 1)),
        )

    def length(self, length: int) -> int:
        """Return what the cache holds: positions count in it."""
        return min(length, self.settings.n_sink + self.settings.window)

    def keep(self) -> Keep:
        return Keep(first=self.settings.n_sink, last=self.settings.window)

    def problems(self, position: Position) -> list[Problem]:
        return not_by_pairs(self.settings, position) or not_relative(self.settings, position)
