"""The Λ-shaped mask with a distance limit (LM-Infinite, arXiv 2308.16137).

A query sees the first n_global tokens and the last `window`; every distance above max_distance counts as
max_distance. O(T·(window + n_global)) time; a cache holds that many keys.

This is the paper's definition. The authors' efficient code (Glaciohound/LM-Infinite, models/lambda_attention.py) is the
same where window = max_distance, which is what it was run with. With a smaller window it places a first token that has
left the window at max_distance at once; here it stays at its true distance until that reaches max_distance. With a
larger window its last tokens keep their true distances, and here they end at max_distance as all do.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Keep, Rule, View, at
from coca_train.attention.patterns._pairs import beyond_table, not_by_pairs
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The first tokens and the latest ones, at limited distances."""

    name: Literal["lambda_mask"]
    n_global: Positive = Field(description="first tokens that stay visible; 10 to 100 in the paper")
    window: Positive = Field(description="latest tokens that are visible, the query itself included")
    max_distance: Positive = Field(description="larger distances count as this one [tokens]; the training window")


class Rules(AttentionPattern):
    """Near and global tokens, each at true distances up to the limit and at the limit beyond."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        s = self.settings
        near, limit = min(s.window, s.max_distance), s.max_distance
        views = [View(Rule(window=near))]
        if s.window > limit:
            views.append(View(Rule(window=s.window, beyond=limit), queries=at(limit), keys=at(0)))
        if s.window < limit:
            views.append(View(Rule(window=limit, beyond=s.window, first=s.n_global)))
        views.append(View(Rule(beyond=max(s.window, limit), first=s.n_global), queries=at(limit), keys=at(0)))
        return tuple(views)

    def keep(self) -> Keep:
        return Keep(first=self.settings.n_global, last=self.settings.window)

    def problems(self, position: Position) -> list[Problem]:
        return not_by_pairs(self.settings, position) or beyond_table(self.settings, position, "max_distance")
