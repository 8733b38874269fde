"""Methods compared over several tasks and seeds, of which some may be missing: differences with intervals, and ranks.

A score y_MSK is one method's (M) on one task (K) with one seed (S), NaN where there is none. Seeds pair: seed s of two
methods had the same batches.

**Difference of two methods.** d_SK over the tasks that both have with at least half of the seeds. As in
statistics/intervals.py two half widths add up in squares: Student's over the tasks' means, which holds what tasks
differ in and the noise of every training in them, and Student's over what seeds are off all tasks alike. Other tasks of
this kind, and other seeds, would have given another difference: the interval is of both.

**Level of a method.** Tasks are hard or easy, and a method that has only the easy ones is no better for it: scores are
fitted by least squares as method plus task, and a level is the method's part plus the mean of all tasks' parts: its
expected mean score over all tasks.

**Rank.** By the level, 1 the highest; its interval is over draws of tasks and of seeds with replacement (the bootstrap;
all methods by the same draws).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coca_train.statistics.intervals import CONFIDENCE, Bounds, student

DRAWS = 1000
ROUNDS = 200  # of the fit at most, each of methods and then of tasks
SETTLED = 1e-9  # a level no longer changes


class Ranked(NamedTuple):
    """A method's level and rank, each with its interval. n: tasks that it has; level is NaN without any."""

    level: Bounds
    rank: int
    best_rank: int
    worst_rank: int


def levels(y_MK: np.ndarray) -> np.ndarray:
    """Return the level of each method (..., M): least squares of method plus task over the scores that there are.

    y_MK: (..., M, K). NaN where a method has none, and in a draw that leaves none.
    """
    there = np.isfinite(y_MK)
    y_MK, weight_M, weight_K = np.where(there, y_MK, 0.0), there.sum(-1), there.sum(-2)
    task_K = np.zeros((*y_MK.shape[:-2], 1, y_MK.shape[-1]))
    method_M = np.zeros((*y_MK.shape[:-1], 1))
    for _ in range(ROUNDS):
        before = method_M
        method_M = ((y_MK - task_K) * there).sum(-1, keepdims=True) / np.maximum(weight_M, 1)[..., None]
        task_K = ((y_MK - method_M) * there).sum(-2, keepdims=True) / np.maximum(weight_K, 1)[..., None, :]
        if np.abs(method_M - before).max() < SETTLED:
            break
    known_K = (weight_K > 0)[..., None, :]
    mean = (task_K * known_K).sum(-1, keepdims=True) / np.maximum(known_K.sum(-1, keepdims=True), 1)
    return np.where(weight_M > 0, (method_M + mean)[..., 0], np.nan)


def rank(y_MSK: np.ndarray, seed: int = 0) -> list[Ranked]:
    """Return every method's level and rank, in the order given."""
    n_methods, n_seeds, n_tasks = y_MSK.shape
    rng = np.random.default_rng(seed)
    level_M = levels(_mean_over_seeds(y_MSK))
    drawn = [
        _mean_over_seeds(y_MSK[:, rng.integers(n_seeds, size=n_seeds)])[:, rng.integers(n_tasks, size=n_tasks)]
        for _ in range(DRAWS)
    ]
    level_RM = levels(np.stack(drawn))
    rank_M, rank_RM = _ranks(level_M), _ranks(level_RM)
    tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    found = []
    for m in range(n_methods):
        known_R = np.isfinite(level_RM[:, m])
        low, high = np.quantile(level_RM[known_R, m], tails) if known_R.any() else (-math.inf, math.inf)
        best, worst = (
            np.quantile(rank_RM[known_R, m], tails, method="inverted_cdf") if known_R.any() else (1, n_methods)
        )
        n = int(np.isfinite(y_MSK[m]).any(0).sum())
        found.append(
            Ranked(Bounds(float(level_M[m]), float(low), float(high), n), int(rank_M[m]), int(best), int(worst))
        )
    return found


def _mean_over_seeds(y_MSK: np.ndarray) -> np.ndarray:
    """Return the mean over the seeds that there are, NaN where there is none."""
    there = np.isfinite(y_MSK)
    n_MK = there.sum(1)
    return np.where(n_MK > 0, np.where(there, y_MSK, 0.0).sum(1) / np.maximum(n_MK, 1), np.nan)


def _ranks(level_M: np.ndarray) -> np.ndarray:
    """Return 1 for the highest; a method without a level comes last."""
    filled = np.where(np.isfinite(level_M), level_M, -np.inf)
    return 1 + (filled[..., None, :] > filled[..., :, None]).sum(-1)


class TaskDifference:
    """One method minus another over tasks and seeds, with its interval at any confidence. y_SK: of each."""

    rounding = 0.0

    def __init__(self, one_SK: np.ndarray, other_SK: np.ndarray) -> None:
        d_SK = one_SK - other_SK
        known_K = np.isfinite(d_SK).sum(0) * 2 >= len(d_SK)
        d_SK = d_SK[:, known_K]
        self.d_K = _mean_over_seeds(d_SK[None])[0]
        self.n = len(self.d_K)
        off_SK = d_SK - self.d_K
        known_S = np.isfinite(off_SK).any(1)
        self.off_S = _mean_over_seeds(off_SK[known_S].T[None])[0] if self.n else np.zeros(0)

    def interval(self, confidence: float = CONFIDENCE) -> Bounds:
        """Return the mean difference and its interval, infinite with fewer than two tasks."""
        if self.n < 2:
            return Bounds(float(self.d_K.mean()) if self.n else math.nan, -math.inf, math.inf, self.n)
        estimate = float(self.d_K.mean())
        half = math.hypot(_half(self.d_K, confidence), _half(self.off_S, confidence) if len(self.off_S) > 1 else 0.0)
        return Bounds(estimate, estimate - half, estimate + half, self.n)


def over_seeds(y_S: Sequence[float] | np.ndarray) -> Bounds:
    """Return a mean over seeds with Student's interval; NaN are left out."""
    known = np.asarray(y_S, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known):
        return Bounds(math.nan, -math.inf, math.inf, 0)
    half = _half(known, CONFIDENCE) if len(known) > 1 else math.inf
    return Bounds(float(known.mean()), float(known.mean()) - half, float(known.mean()) + half, len(known))


def _half(y_N: np.ndarray, confidence: float) -> float:
    """Return half of Student's interval of a mean."""
    return student(confidence, len(y_N) - 1) * float(y_N.std(ddof=1)) / math.sqrt(len(y_N))
