"""Sliding window: a query sees the last `window` tokens, itself included (Longformer, arXiv 2004.05150, section 3.1).

With window = the training window this is the simplest extrapolation of all. O(T·window) time; a cache holds
`window` keys.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Keep, Rule, View
from coca_train.config.schema import STRICT, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Local attention."""

    name: Literal["sliding_window"]
    window: Positive = Field(description="tokens a query sees, itself included")


class Rules(AttentionPattern):
    """Distances below the window."""

    settings: Settings

    def views(self) -> tuple[View, ...]:
        return (View(Rule(window=self.settings.window)),)

    def keep(self) -> Keep:
        return Keep(first=0, last=self.settings.window)
