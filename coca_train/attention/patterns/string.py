"""STRING (An et al., arXiv 2410.18745): far tokens are moved nearer, onto distances that training showed often.

    distance(m, n) = m - n  where that is below S;   m - n - S + W  elsewhere

Large distances are rare in training, L - r pairs of each in a window of L, so the model knows them least. Within that
window STRING gives them up: with S = L/3 no distance is larger than 2/3 of it. Nothing is trained. Two views under one
softmax; every key stays where it is, and queries move, so a cache holds rotated keys.
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
    """Far tokens nearer. ValueError where they would be further."""

    name: Literal["string"]
    window: Positive = Field(description="the training window, L [tokens]")
    shift: Positive | None = Field(
        default=None, description="nearer tokens stand where they are, S [tokens]; null: L/3, the paper's"
    )
    local: Positive | None = Field(
        default=None, description="the distance that S becomes, W [tokens]; null: L/32, the paper's 128 of 4,096"
    )

    def __post_init__(self) -> None:
        if self.moved > self.near:
            raise ValueError(f"local ({self.moved}) must be at most shift ({self.near})")

    @property
    def near(self) -> int:
        return self.shift or max(1, self.window // 3)

    @property
    def moved(self) -> int:
        return self.local or max(1, self.window // 32)


class Rules(AttentionPattern):
    """True distances up to S, and smaller ones beyond."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        shift, local = self.settings.near, self.settings.moved
        return (View(Rule(window=shift)), View(Rule(beyond=shift), queries=Place(add=local - shift)))

    def length(self, length: int) -> int:
        """Return the largest distance and one, in a text of this length."""
        shift, local = self.settings.near, self.settings.moved
        return max(min(length, shift), length - shift + local)

    def problems(self, position: Position) -> list[Problem]:
        pairs = not_by_pairs(self.settings, position, needs_positions=True)
        return pairs or not_relative(self.settings, position)
