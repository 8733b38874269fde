"""Methods compared over several tasks and seeds, of which some may be missing: differences with intervals, and ranks.

A score y_MSK is one method's (M) on one task (K) with one seed (S), NaN where there is none. Seeds pair: seed s of two
methods had the same batches.

**Difference of two methods.** Two intervals, by a moderated t whose prior is of all pairs of methods
(statistics/moderated.py). *On these tasks*: over the seeds alone, of the tasks that every seed has, of the seeds with
any task in common; other seeds would have given another difference. *Over tasks*: d_SK over the tasks that both have
with at least half of these seeds. As in statistics/intervals.py two half widths add up in squares: that over the tasks'
means, which holds what tasks differ in and the noise of every training in them, and that over what seeds are off all
tasks alike. Other tasks of this kind would have given another difference, too.

**Level of a method.** Tasks are hard or easy, and a method that has only the easy ones is no better for it: scores are
fitted by least squares as method plus task, and a level is the method's part plus the mean of all tasks' parts: its
expected mean score over all tasks that any method has. A method that has no more than half of these has no level.

**Rank.** By the level, 1 the highest. Its range: a method cannot be above those that are significantly better, nor
below those that are significantly worse; of its differences to all others any is called significant falsely in at most
5 % of draws (Holm 1979), so the range holds the true rank in at least 95 % (Mogstad et al. 2024), where all methods
have the same tasks. Two methods differ significantly where they do among all differences of the one and among all of
the other, so that no range says of a pair what another does not. Levels are over more tasks than differences are; a
range is widened to hold its own rank. One range is on these tasks, had other seeds been drawn; another on other tasks
of this kind.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coca_train.statistics.answers import WRONG
from coca_train.statistics.intervals import CONFIDENCE, Bounds
from coca_train.statistics.moderated import NO_PRIOR, Prior, fit_prior, half_width

Interval = Callable[[float], Bounds]  # of a difference, at a confidence


class Range(NamedTuple):
    """The ranks that a method may have."""

    best: int
    worst: int


class Ranked(NamedTuple):
    """A method's level, NaN where it has none, and its rank. over_tasks, on_these: the ranges of it, on other tasks of
    this kind and on these. above: the methods, by number, that are significantly better on these tasks."""

    level: float
    rank: int
    over_tasks: Range
    on_these: Range
    above: frozenset[int]


def levels(y_MK: np.ndarray) -> np.ndarray:
    """Return the level of each method (M,): least squares of method plus task over the scores that there are; NaN for
    a method with no more than half of the tasks that any method has."""
    there_MK = np.isfinite(y_MK)
    n_tasks = int(there_MK.any(0).sum())
    there_MK &= (2 * there_MK.sum(1) > n_tasks)[:, None]
    weight_M, weight_K = there_MK.sum(1), there_MK.sum(0)
    y_MK = np.where(there_MK, y_MK, 0.0)
    mean_M = y_MK.sum(1) / np.maximum(weight_M, 1)
    # The normal equations, methods eliminated: of tasks alone, and up to a constant, hence the pseudo-inverse.
    share_MK = there_MK / np.maximum(weight_M, 1)[:, None]
    tasks_KK = np.diag(weight_K) - there_MK.T.astype(float) @ share_MK
    task_K = np.linalg.pinv(tasks_KK, hermitian=True) @ (y_MK - mean_M[:, None] * there_MK).sum(0)
    level_M = mean_M - share_MK @ task_K + (task_K[weight_K > 0].mean() if weight_K.any() else 0.0)
    return np.where(weight_M > 0, level_M, np.nan)


def rank(y_MSK: np.ndarray, priors: "Priors") -> list[Ranked]:
    """Return every method's level and rank, in the order given; those without a level come last. priors: of the
    differences."""
    level_M = levels(mean_over_seeds(y_MSK))
    filled_M = np.where(np.isfinite(level_M), level_M, -np.inf)
    known = [m for m in range(len(y_MSK)) if np.isfinite(level_M[m])]
    over_tasks, on_these = np.zeros((2, len(y_MSK), len(y_MSK)))
    for m in known:
        others = [other for other in known if other != m]
        differences = [TaskDifference(y_MSK[m], y_MSK[other], priors) for other in others]
        over_tasks[m, others] = _signs([each.interval for each in differences])
        on_these[m, others] = _signs([each.on_these_tasks for each in differences])
    over_tasks, on_these = _agreed(over_tasks), _agreed(on_these)
    found = []
    for m in range(len(y_MSK)):
        n, own = len(known) if m in known else len(y_MSK), 1 + int((filled_M > filled_M[m]).sum())
        above = frozenset(map(int, np.flatnonzero(on_these[m] < 0)))
        ranges = _range(over_tasks[m], n, own), _range(on_these[m], n, own)
        found.append(Ranked(float(level_M[m]), own, *ranges, above))
    return found


def _signs(intervals: Sequence[Interval]) -> list[float]:
    """Return +1 and -1 for differences that are significant, and 0 for others, all judged together."""
    return [0.0 if each is None else math.copysign(1, each.estimate) for each in significant(intervals)]


def _agreed(sign_MM: np.ndarray) -> np.ndarray:
    """Return the significant differences of rows and columns that are so among all of the one and all of the other."""
    return np.where(sign_MM == -sign_MM.T, sign_MM, 0.0)


def _range(sign_M: np.ndarray, n: int, own: int) -> Range:
    """Return the ranks that a method's significant differences to the others leave, its own among them. n: methods."""
    return Range(min(own, 1 + int((sign_M < 0).sum())), max(own, n - int((sign_M > 0).sum())))


def significant(intervals: Sequence[Interval]) -> list[Bounds | None]:
    """Return the bounds of each difference that is significant, at the confidence it was judged by; None of others."""
    found: list[Bounds | None] = [None] * len(intervals)
    left = set(range(len(intervals)))
    while left:
        bounds = {i: intervals[i](1 - WRONG / len(left)) for i in left}
        judged = {i: each for i, each in bounds.items() if each.excludes(0)}
        for i, each in judged.items():
            found[i] = each
        left = left - judged.keys() if judged else set()
    return found


def mean_over_seeds(y_MSK: np.ndarray) -> np.ndarray:
    """Return the mean over the seeds that there are, NaN where there is none."""
    there = np.isfinite(y_MSK)
    n_MK = there.sum(1)
    return np.where(n_MK > 0, np.where(there, y_MSK, 0.0).sum(1) / np.maximum(n_MK, 1), np.nan)


class Priors(NamedTuple):
    """Of the variances of differences of two methods: over tasks; over seeds, of what each is off all its tasks alike;
    and over seeds of the mean on the tasks that all of them have."""

    tasks: Prior = NO_PRIOR
    seeds: Prior = NO_PRIOR
    on_these: Prior = NO_PRIOR

    def times(self, factor: float) -> "Priors":
        """Return them for differences whose variance is so many times as large."""
        return Priors(*(each.times(factor) for each in self))


NO_PRIORS = Priors()


def fit_priors(y_MSK: np.ndarray) -> Priors:
    """Return the priors of the differences of all pairs of methods."""
    pairs = [TaskDifference(one, other) for m, one in enumerate(y_MSK) for other in y_MSK[:m]]
    samples = ([each.d_K for each in pairs], [each.off_S for each in pairs], [each.mean_S for each in pairs])
    return Priors(*map(fit_prior, samples))


class TaskDifference:
    """One method minus another over tasks and seeds, with its interval at any confidence. one_SK, other_SK: scores.
    priors: of differences like this one."""

    def __init__(self, one_SK: np.ndarray, other_SK: np.ndarray, priors: Priors = NO_PRIORS) -> None:
        self.priors = priors
        d_SK = one_SK - other_SK
        d_SK = d_SK[np.isfinite(d_SK).any(1)]  # seeds that both have
        # What a seed lacks would pass for what seeds differ in.
        self.shared_K = np.isfinite(d_SK).all(0) & bool(len(d_SK))
        self.whole_SK = d_SK[:, self.shared_K]
        self.mean_S = self.whole_SK.mean(1) if self.whole_SK.size else np.empty(0)
        d_SK = d_SK[:, (np.isfinite(d_SK).sum(0) * 2 >= len(d_SK)) & np.isfinite(d_SK).any(0)]
        self.d_K = mean_over_seeds(d_SK[None])[0]
        self.n = len(self.d_K)
        self.off_S = mean_over_seeds((d_SK - self.d_K).T[None])[0]
        self.off_S = self.off_S[np.isfinite(self.off_S)]

    def interval(self, confidence: float = CONFIDENCE) -> Bounds:
        """Return the mean difference and its interval, infinite with fewer than two tasks or seeds."""
        if self.n < 2 or len(self.off_S) < 2:
            return Bounds(float(self.d_K.mean()) if self.n else math.nan, -math.inf, math.inf, self.n)
        estimate = float(self.d_K.mean())
        half = math.hypot(
            half_width(self.d_K, confidence, self.priors.tasks), half_width(self.off_S, confidence, self.priors.seeds)
        )
        return Bounds(estimate, estimate - half, estimate + half, self.n)

    def on_these_tasks(self, confidence: float = CONFIDENCE) -> Bounds:
        """Return the mean difference with its interval over seeds alone, infinite with fewer than two seeds: over the
        tasks that all shared seeds have."""
        return over_seeds(self.mean_S, confidence, self.priors.on_these)

    def without_one_task(self) -> dict[int, float]:
        """Return what is left of the mean difference on these tasks when one of them is left out, by its number; of one
        seed nothing."""
        n_seeds, n = self.whole_SK.shape
        if n_seeds < 2 or n < 2:
            return {}
        d_K = self.whole_SK.mean(0)
        return {
            int(k): float((d_K.sum() - d) / (n - 1)) for k, d in zip(np.flatnonzero(self.shared_K), d_K, strict=True)
        }


def over_seeds(y_S: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE, prior: Prior = NO_PRIOR) -> Bounds:
    """Return a mean over seeds with its interval; NaN are left out. prior: of means like this one."""
    known = np.asarray(y_S, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known):
        return Bounds(math.nan, -math.inf, math.inf, 0)
    half = half_width(known, confidence, prior) if len(known) > 1 else math.inf
    return Bounds(float(known.mean()), float(known.mean()) - half, float(known.mean()) + half, len(known))
