"""Stored trainings done again: whether they come out with the same bits, or as other draws of the same."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coca_train.atlas.trials import Trial, scored
from coca_train.statistics.intervals import Bounds
from coca_train.statistics.ranks import over_seeds


@dataclass(frozen=True)
class Repeat:
    """The trials of one training as they were stored and as they came out again, by row."""

    stored: Mapping[str, Trial]
    again: Mapping[str, Trial]

    @property
    def same(self) -> bool:
        """Whether every answer and the trained weights are the stored ones."""
        return all(self.again[row].result == trial.result for row, trial in self.stored.items())

    @property
    def processor(self) -> str:
        """What the stored training ran on."""
        return next(iter(self.stored.values())).processor

    @property
    def scores(self) -> tuple[float, float]:
        """The mean score, stored and again, over the rows and the tasks with scores that were learned both times; NaN
        where none was."""
        tasks = set(scored(self.stored.values()))
        pairs = [
            (trial.score(task), self.again[row].score(task))
            for row, trial in self.stored.items()
            for task in trial.learned
            if task in tasks and self.again[row].has_learned(task)
        ]
        stored, again = np.mean(pairs, axis=0) if pairs else (math.nan, math.nan)
        return float(stored), float(again)

    def __str__(self) -> str:
        if self.same:
            return f"the same bits in {len(self.stored)} row{'s' * (len(self.stored) > 1)}"
        stored, again = self.scores
        return f"other bits; mean score {again:.3f}, stored {stored:.3f}"


def difference(repeats: Sequence[Repeat]) -> Bounds:
    """Return the mean over trainings of their score less the stored one, with its interval."""
    return over_seeds([again - stored for stored, again in (each.scores for each in repeats)])


def verdict(repeats: Sequence[Repeat], processor: str) -> tuple[list[str], bool]:
    """Return what trainings done again say, and whether that is what was stored: the same bits, or, of trainings that
    were stored on another processor, no significant difference of their scores. processor: the one in use."""
    other = [each for each in repeats if not each.same]
    said = [f"{len(repeats) - len(other)} of {len(repeats)} trainings came out with the same bits."]
    if not other:
        return said, True
    here = [each for each in other if each.processor == processor]
    if here:
        said.append(f"{len(here)} did not, though this is the processor that they were stored on: {processor}.")
    elsewhere = sorted({each.processor for each in other if each not in here})
    if elsewhere:
        said.append(
            f"{len(other) - len(here)} were stored on another processor ({', '.join(elsewhere)}; this is {processor}), "
            "where sums are rounded differently, which a training amplifies."
        )
    apart = difference(other)
    interval = f" ({apart.low:+.3f} to {apart.high:+.3f})" if math.isfinite(apart.high) else ""
    said.append(f"Their score beyond the training window, less the stored one: {apart.estimate:+.3f}{interval}.")
    return said, not here and not apart.excludes(0.0)
