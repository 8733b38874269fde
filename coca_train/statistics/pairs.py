"""Which figures of a table differ, and which are the best: each pair of a column by its own differences, all pairs of
all columns judged together.

Two levels whose wide intervals overlap may still differ: documents are hard or easy for both. So models and variants
are compared by the difference on each document, on each prompt of a share, on each seed where there are
several, and never by whether two intervals meet. Where figures are not of the same documents (two tokenizers, a
benchmark whose figure is no mean over documents) the interval of the difference of two independent means takes its
place.

Of n pairs that are left each is judged at 5 % / n; while any is significant, the others are judged again without it
(Holm 1979): in at most 5 % of draws any pair of the table is called different falsely.

A figure is among the best when no other one is significantly better: one function for bold, for sentences and for the
table of differences. Of fewer than LEAST documents or prompts nothing is the best. Figures of which no interval is
known are compared as they read, and no sentence names a winner among them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple, Protocol

import numpy as np

from coca_train.statistics.answers import LEAST, WRONG
from coca_train.statistics.intervals import CONFIDENCE, Bounds, Crossed, student
from coca_train.statistics.shares import paired_shares

MANY = 10_000  # degrees of freedom of Student's distribution that is as good as normal


@dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """What a figure is the mean of, so that another one of the same units can be compared with it.

    sums_SU2: of each seed and unit the sum of what is averaged, and how many it is of. units: a digest of what was
    drawn (the documents' tokens, the prompts): two samples are paired where it is the same. seeds: what each seed is
    called. rounding: as much may be between two figures without any difference between models.
    """

    sums_SU2: np.ndarray
    units: str
    seeds: tuple[str, ...] = ("",)
    rounding: float = 0.0

    @classmethod
    def of_shares(cls, found: Sequence[bool | float], units: str, weights: Sequence[float] | None = None) -> "Sample":
        """Of prompts that were answered or not, or in part."""
        weights_U = np.ones(len(found)) if weights is None else np.asarray(weights, dtype=float)
        sums_U2 = np.stack((np.asarray(found, dtype=float) * weights_U, weights_U), 1)
        return cls(sums_SU2=sums_U2[None], units=units)

    @property
    def n(self) -> int:
        return self.sums_SU2.shape[1]

    def pairs_with(self, other: "Sample") -> bool:
        """Whether both are of the same units, so that they can be compared one by one: seed by seed where they have
        some in common, else one training with another (a folder has no seed that is known)."""
        in_common = set(self.seeds) & set(other.seeds) or len(self.seeds) == len(other.seeds) == 1
        return self.units == other.units and bool(in_common)


class Figure(Protocol):
    """What is compared; report.blocks.Value is one. text: as shown. n: how many documents or prompts it is of."""

    @property
    def text(self) -> str: ...
    @property
    def n(self) -> int | None: ...
    @property
    def number(self) -> float | None: ...
    @property
    def interval(self) -> tuple[float, float] | None: ...
    @property
    def sample(self) -> Sample | None: ...


class Difference(NamedTuple):
    """One figure minus another, in the unit of their samples (nats per token, a share) or, unpaired, of the figures.

    bounds: at the confidence it was judged by. n_below, n_above: units of which the first is the lower or the higher
    one; 0 of unpaired ones. seeds: the difference of each.
    documents: whether it is significant over documents alone, at the same confidence.
    """

    bounds: Bounds
    significant: bool
    n_below: int
    n_above: int
    seeds: tuple[float, ...]
    documents: bool
    paired: bool

    def negated(self) -> "Difference":
        """Return the second minus the first."""
        estimate, low, high, n = self.bounds
        seeds = tuple(-each for each in self.seeds)
        bounds = Bounds(-estimate, -high, -low, n)
        return self._replace(bounds=bounds, n_below=self.n_above, n_above=self.n_below, seeds=seeds)


class _Paired:
    """Two figures of the same units, compared at any confidence. rounding: a difference up to it says nothing."""

    def __init__(self, one: Sample, other: Sample) -> None:
        seeds = [(i, other.seeds.index(seed)) for i, seed in enumerate(one.seeds) if seed in other.seeds] or [(0, 0)]
        ours, theirs = (sample.sums_SU2[[pair[k] for pair in seeds]] for k, sample in enumerate((one, other)))
        self.sums_SU2 = np.stack((ours[..., 0] - theirs[..., 0], ours[..., 1]), -1)
        self.n, self.rounding = one.n, max(one.rounding, other.rounding)
        self.is_yes_or_no = _is_yes_or_no(ours) and _is_yes_or_no(theirs)

    @cached_property
    def crossed(self) -> Crossed:
        return Crossed(self.sums_SU2)

    def interval(self, confidence: float) -> Bounds:
        if not self.is_yes_or_no:
            return self.crossed.interval(confidence)
        gained, lost = int((self.sums_SU2[0, :, 0] > 0).sum()), int((self.sums_SU2[0, :, 0] < 0).sum())
        return paired_shares(gained, lost, self.n, confidence)

    def difference(self, confidence: float) -> Difference:
        bounds, means_U = self.interval(confidence), self.sums_SU2[..., 0].mean(0)
        alone = bounds if self.is_yes_or_no else self.crossed.documents.interval(confidence)
        return Difference(
            bounds,
            significant=bounds.excludes(0, self.rounding),
            n_below=int((means_U < 0).sum()),
            n_above=int((means_U > 0).sum()),
            seeds=tuple(map(float, self.sums_SU2[..., 0].sum(1) / self.sums_SU2[..., 1].sum(1))),
            documents=alone.excludes(0, self.rounding),
            paired=True,
        )


class _Unpaired:
    """Two figures of different units with an interval each: half widths add up as those of independent means do."""

    rounding = 0.0

    def __init__(self, one: Figure, other: Figure) -> None:
        self.figures = one, other

    def interval(self, confidence: float) -> Bounds:
        wider = student(confidence, MANY) / student(CONFIDENCE, MANY)
        one, other = (figure.number or 0.0 for figure in self.figures)
        (low, high), (other_low, other_high) = (f.interval or (f.number or 0.0,) * 2 for f in self.figures)
        below, above = math.hypot(one - low, other_high - other), math.hypot(high - one, other - other_low)
        return Bounds(one - other, one - other - wider * below, one - other + wider * above, LEAST)

    def difference(self, confidence: float) -> Difference:
        bounds = self.interval(confidence)
        significant = bounds.excludes(0)
        return Difference(bounds, significant, 0, 0, (bounds.estimate,), significant, paired=False)


def differences(columns: Sequence[Sequence[Figure]]) -> list[dict[tuple[int, int], Difference]]:
    """Return by column, for each pair (i, j), i < j, the i-th figure minus the j-th.

    A figure without a number, or an infinite one, is in no pair. Figures of one column without intervals and samples
    are compared as they are.
    """
    left: dict[tuple[int, int, int], _Paired | _Unpaired] = {}
    for column, figures in enumerate(columns):
        for i, j in combinations(range(len(figures)), 2):
            if (pair := _pair(figures[i], figures[j])) is not None:
                left[column, i, j] = pair
    found: list[dict[tuple[int, int], Difference]] = [{} for _ in columns]
    while left:
        confidence = 1 - WRONG / len(left)
        judged = {place: pair for place, pair in left.items() if pair.interval(confidence).excludes(0, pair.rounding)}
        for (column, i, j), pair in (judged or left).items():
            found[column][i, j] = pair.difference(confidence)
        left = {place: pair for place, pair in left.items() if place not in judged} if judged else {}
    return found


def _pair(one: Figure, other: Figure) -> _Paired | _Unpaired | None:
    if not all(each.number is not None and math.isfinite(each.number) for each in (one, other)):
        return None
    if one.sample is not None and other.sample is not None and one.sample.pairs_with(other.sample):
        return _Paired(one.sample, other.sample)
    return _Unpaired(one, other)


def _is_yes_or_no(sums_SU2: np.ndarray) -> bool:
    """Whether a unit is a prompt that was answered or not."""
    return len(sums_SU2) == 1 and bool(np.isin(sums_SU2[..., 0], (0, 1)).all() and (sums_SU2[..., 1] == 1).all())


Direction = Literal["low", "high"]


class Standing(NamedTuple):
    """Which figures of one column are the best. best: the indices of the best one and of all that are not significantly
    worse. differences: by pair of indices, the first minus the second. few: the number of documents or prompts where it
    is below LEAST. unsure: whether some figure has no interval."""

    best: tuple[int, ...]
    differences: Mapping[tuple[int, int], Difference]
    few: int | None = None
    unsure: bool = False

    def difference(self, i: int, j: int) -> Difference | None:
        """Return figure i minus figure j; None where the two cannot be compared."""
        if (i, j) in self.differences:
            return self.differences[i, j]
        found = self.differences.get((j, i))
        return None if found is None else found.negated()

    def better(self, i: int, j: int, direction: Direction) -> bool:
        """Whether i is significantly better than j."""
        found = self.difference(i, j)
        return found is not None and found.significant and (found.bounds.estimate < 0) == (direction == "low")


def standings(columns: Sequence[Sequence[Figure]], direction: Direction) -> list[Standing]:
    """Return which figures of each column are the best, all columns judged together."""
    return [_standing(figures, found, direction) for figures, found in zip(columns, differences(columns), strict=True)]


def _standing(figures: Sequence[Figure], found: Mapping[tuple[int, int], Difference], direction: Direction) -> Standing:
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
    # Shares of which the highest reads as 0 in its own form (0.00, 0%), or may be no better than one that does, have no
    # best: nobody found anything.
    if direction == "high" and any(not set(known[i].text) & set("123456789") for i in best):
        return standing
    return standing._replace(best=tuple(best))
