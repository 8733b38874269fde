"""Self-Extend (Jin et al., arXiv 2401.01325): far tokens share positions in groups.

    distance(m, n) = m - n  where that is below w;   ⌊m/g⌋ - ⌊n/g⌋ + w - ⌊w/g⌋  elsewhere

Everything stays visible, and a text of L·g or so has distances that L has shown; nothing is trained. The floors are of
m and n apart, not of their difference. Two views under one softmax: twice the work of causal attention, and a cache
that keeps every key, unrotated, as a key has two places.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Place, Rule, View
from coca_train.attention.patterns._pairs import not_by_pairs, not_relative
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Groups of far tokens. ValueError where more are near than training showed."""

    name: Literal["self_extend"]
    window: Positive = Field(description="the training window, L [tokens]")
    group: int = Field(ge=2, description="far tokens that share a position, g; the paper: 4 to 16")
    neighbours: Positive | None = Field(
        default=None, description="nearer tokens stand where they are, w [tokens]; null: L/4, as 1,024 of 4,096"
    )

    def __post_init__(self) -> None:
        if self.near > self.window:
            raise ValueError(f"neighbours ({self.near}) must be at most window ({self.window})")

    @property
    def near(self) -> int:
        return self.neighbours or max(1, self.window // 4)


class Rules(AttentionPattern):
    """True distances inside the window, those of groups beyond."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        group, near = self.settings.group, self.settings.near
        far = View(Rule(beyond=near), Place(divide=group, add=near - near // group), Place(divide=group))
        return (View(Rule(window=near)), far)

    def length(self, length: int) -> int:
        """Return the largest distance and one, in a text of this length."""
        group, near = self.settings.group, self.settings.near
        return length if length <= near else max(near, (length - 1) // group + near - near // group + 1)

    def problems(self, position: Position) -> list[Problem]:
        pairs = not_by_pairs(self.settings, position, needs_positions=True)
        return pairs or not_relative(self.settings, position)
