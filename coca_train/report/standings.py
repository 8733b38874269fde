"""Which figures of a column are the best: one function for bold, for sentences and for the table of differences.

A figure is among the best when no other one is surely better, by the paired differences of statistics/pairs.py, judged
for the whole table together. Of fewer than LEAST documents or prompts nothing is the best. Figures of which no interval
is known are compared as they read, and no sentence names a winner among them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from coca_train.statistics.answers import LEAST
from coca_train.statistics.pairs import Difference, Figure, differences

Direction = Literal["low", "high"]


class Shown(Figure, Protocol):
    """A figure with its words; report.blocks.Value is one. n: how many documents or prompts it is of."""

    @property
    def text(self) -> str: ...
    @property
    def n(self) -> int | None: ...


class Standing(NamedTuple):
    """Of one column. best: the places of the best figure and of all that cannot be told apart from it. differences: by
    pair of places, the first less the second. few: of how many documents or prompts, where that is fewer than LEAST.
    unsure: whether some figure has no interval."""

    best: tuple[int, ...]
    differences: Mapping[tuple[int, int], Difference]
    few: int | None = None
    unsure: bool = False

    def difference(self, i: int, j: int) -> Difference | None:
        """Of figure i less figure j; None where the two cannot be compared."""
        if (i, j) in self.differences:
            return self.differences[i, j]
        found = self.differences.get((j, i))
        return None if found is None else found.negated()

    def better(self, i: int, j: int, direction: Direction) -> bool:
        """Whether i is surely better than j."""
        found = self.difference(i, j)
        return found is not None and found.significant and (found.bounds.estimate < 0) == (direction == "low")


def standings(columns: Sequence[Sequence[Shown]], direction: Direction) -> list[Standing]:
    """Of each column, all of them judged together."""
    return [_standing(figures, found, direction) for figures, found in zip(columns, differences(columns), strict=True)]


def _standing(figures: Sequence[Shown], found: Mapping[tuple[int, int], Difference], direction: Direction) -> Standing:
    known = {i: v for i, v in enumerate(figures) if v.number is not None and math.isfinite(v.number)}
    fewest = min((v.n for v in figures if v.number is not None and v.n is not None), default=LEAST)
    unsure = any(v.interval is None and v.sample is None for v in known.values())
    standing = Standing((), found, fewest if fewest < LEAST else None, unsure)
    if not known or standing.few is not None:
        return standing
    extreme = (min if direction == "low" else max)(known, key=lambda i: known[i].number or 0.0)
    # What reads the same is as good: 5.001 next to 5.00 is no difference that a reader could see.
    best = [
        i
        for i, value in known.items()
        if value.text == known[extreme].text or not any(standing.better(j, i, direction) for j in known)
    ]
    # Shares of which the highest reads as 0 (nobody found anything), or may be no better than one that does, have no
    # best.
    return (
        standing
        if direction == "high" and any(_nothing(known[i]) for i in best)
        else standing._replace(best=tuple(best))
    )


def _nothing(value: Shown) -> bool:
    """Reads as 0 in its own form: 0.00, 0%, 0.0 %."""
    return not any(sign in "123456789" for sign in value.text)
