"""A dilated sliding window with global tokens (Longformer, arXiv 2004.05150, section 3.1), causal.

A query sees the `window` keys at distances 0, d, 2d … (w - 1)·d, and the first n_global tokens, which see all before
them as every query does. Every key stays at its distance. Longformer dilates two heads of the upper layers alone; here
a dilation is that of a layer, `layers=` says of which. O(T·(window + n_global)) pairs; tiles that hold a part of them
are computed whole, so time is that of a window of w·d.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Keep, Rule, View
from coca_train.attention.patterns._pairs import not_one_stretch
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Keys at regular distances, and the first ones."""

    name: Literal["dilated"]
    window: Positive = Field(description="keys that are visible, the query's own included [tokens]")
    dilation: Positive = Field(description="distance between them, d [tokens]; 1: a sliding window")
    n_global: int = Field(ge=0, description="first tokens that stay visible [tokens]")


class Rules(AttentionPattern):
    """The dilated window, and global tokens within and beyond it."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        s = self.settings
        near = Rule(window=self._width, every=s.dilation, after=s.n_global)
        return (View(near), View(Rule(first=s.n_global))) if s.n_global else (View(near),)

    @property
    def _width(self) -> int:
        return (self.settings.window - 1) * self.settings.dilation + 1

    def keep(self) -> Keep:
        return Keep(first=self.settings.n_global, last=self._width)

    def problems(self, position: Position) -> list[Problem]:
        return not_one_stretch(self.settings, position)
