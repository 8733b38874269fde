"""Attention in both directions: a query sees every token of its text, or those near it on both sides.

For encoders, which learn to predict masked tokens (`data.objective.name=masked_token`; BERT, arXiv 1810.04805). There
is no cache, and nothing to generate: a later token changes what an earlier one has become.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import BIDIRECTIONAL, AttentionPattern, View
from coca_train.config.schema import STRICT, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Attention in both directions."""

    name: Literal["bidirectional"]
    window: Positive | None = Field(
        default=None,
        description="tokens a query sees, itself included; of bidirectional on each side, null: all",
    )


class Rules(AttentionPattern):
    """Distances below the window, whichever the side."""

    settings: Settings
    bidirectional = True

    def views(self) -> tuple[View, ...]:
        return (View(BIDIRECTIONAL._replace(window=self.settings.window)),)
