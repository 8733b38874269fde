"""ReRoPE (Su, 2023, kexue.fm/archives/9708): distances of `window` and more all count as `window`.

Everything stays visible. Two views, of near and of far pairs, under one softmax: the far one has its queries
at `window` and its keys at 0. Twice the work of causal attention, and a cache that keeps every key.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Rule, View, at
from coca_train.attention.patterns._pairs import beyond_table, not_by_pairs
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """All tokens, at limited distances."""

    name: Literal["rerope"]
    window: Positive = Field(description="larger distances count as this one [tokens]; at most the training window")


class Rules(AttentionPattern):
    """True distances inside the window, the window itself beyond."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        window = self.settings.window
        return (View(Rule(window=window)), View(Rule(beyond=window), queries=at(window), keys=at(0)))

    def problems(self, position: Position) -> list[Problem]:
        pairs = not_by_pairs(self.settings, position, needs_positions=True)
        return pairs or beyond_table(self.settings, position, "window")
