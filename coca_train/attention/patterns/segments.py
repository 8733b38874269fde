"""Independent segments: chunks of `length` tokens that do not see each other; positions restart in each.

The simplest way to read beyond the training window, and the yardstick for the others. Evaluation only: in
training it is what a shorter train.seq_len does. O(T·length) time; a cache holds `length` keys.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.attention.pattern import AttentionPattern, Keep, Rule, View
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Chunks of the training window."""

    name: Literal["segments"]
    length: Positive = Field(description="length of a segment [tokens]; the training window")


class Rules(AttentionPattern):
    """Every segment is a document of its own."""

    settings: Settings

    trains = False

    def views(self) -> tuple[View, ...]:
        return (View(Rule(window=self.settings.length)),)  # follows from the documents, and lets far tiles be skipped

    def length(self, length: int) -> int:
        """Return the length of a segment, which is a sequence by itself."""
        return min(length, self.settings.length)

    def share(self, length: int) -> float:
        """Return the visible share: every segment is a triangle."""
        whole, rest = divmod(length, self.settings.length)
        sizes = [self.settings.length] * whole + [rest]
        return sum(size * (size + 1) for size in sizes) / (length * (length + 1))

    def keep(self) -> Keep:
        return Keep(first=0, last=self.settings.length)

    def place(
        self, queries: Positions, keys: Positions, doc_BS: Tensor | None
    ) -> tuple[Positions, Positions, Tensor | None]:
        length, pos_BS = self.settings.length, keys.pos_BT
        segment_BS = pos_BS // length
        if doc_BS is not None:  # number the pairs (document, segment)
            segment_BS = segment_BS + doc_BS * (keys.last // length + 1)
        placed = [
            Positions(each.pos_BT % length, 0, min(each.last, length - 1), keys.contiguous) for each in (queries, keys)
        ]
        return placed[0], placed[0] if keys is queries else placed[1], segment_BS
