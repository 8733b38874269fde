"""Intervals of a mean over documents, and of one over seeds and documents together.

**Documents.** Studentized bootstrap of a ratio of sums (Efron and Tibshirani 1993, chapter 12): each draw's ratio is
measured in its own standard error, by the delta method. Percentiles of the ratio itself are too narrow for twenty
documents, and do not see that a few long ones carry it. An interval is never narrower than Student's: an end so far out
that hardly any draw reached it is not known by the bootstrap.

**Seeds.** A scheme is trained with S seeds, each model is measured on the same D documents, and seed s of two schemes
had the same batches: their difference is known for every seed and document. Its mean m_SD differs from the truth
because other documents would have been read (b_D), because other seeds would have been drawn (a_S), and because of both
(e_SD):

    variance of the mean = var(a) / S + var(b) / D + var(e) / (S D)

The squared standard error over seeds (of the S means over documents) expects var(a) / S + var(e) / (S D), that over
documents (of the D means over seeds) var(b) / D + var(e) / (S D); together they are never too small. The interval is

    estimate +- sqrt(h_seeds^2 + h_documents^2)

with h_seeds half of Student's interval over seeds, S - 1 degrees of freedom, and h_documents the distance to the end of
the interval over documents on that side. For normal effects it covers at least as often as it says, however the
variances share (Banerjee 1960): the chance that a squared normal stays below x is concave in x, so below a mean of two
bounds it is no smaller than the mean of their own chances, each of which is the level. Degrees of freedom put together
from both (Satterthwaite 1946) are not safe here: where two seeds happen to agree, theirs are lost, and of 100 intervals
as few as 90 cover. Two seeds leave Student's t one degree of freedom, 12.7 standard errors; one seed says nothing of
seeds, and its interval is that over documents.
"""

import math
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

CONFIDENCE = 0.95
DRAWS = 10_000  # of the bootstrap: a tail of 0.0005 has five of them
FEWEST_DRAWS = 2_000
DRAWN = 2_500_000  # documents in all draws together, at most, where they leave that many draws: bounds the memory


class Bounds(NamedTuple):
    """An estimate and its interval. n: documents or prompts."""

    estimate: float
    low: float
    high: float
    n: int

    def excludes(self, value: float, margin: float = 0.0) -> bool:
        """Whether the interval lies on one side of value, more than margin away."""
        return self.low > value + margin or self.high < value - margin


class OverDocuments:
    """A ratio of sums over documents, with its interval at any confidence.

    sums_D2: for each document the sum of what is averaged, and how many were summed. Without documents the estimate is
    NaN; with fewer than three the interval is infinite.
    """

    def __init__(self, sums_D2: ArrayLike) -> None:
        self.sums_D2 = np.asarray(sums_D2, dtype=float).reshape(-1, 2)
        self.n = len(self.sums_D2)
        whole_2 = self.sums_D2.sum(0)
        self.estimate = float(whole_2[0] / whole_2[1]) if whole_2[1] else math.nan
        with np.errstate(invalid="ignore"):  # a loss may be infinite
            self.residual_D = self.sums_D2[:, 0] - self.estimate * self.sums_D2[:, 1]
        square = (self.residual_D**2).sum() * self.n / max(1, self.n - 1)
        self.error = math.sqrt(square) / float(whole_2[1]) if self.n > 1 else math.inf

    def interval(self, confidence: float = CONFIDENCE) -> Bounds:
        if self.n < 3:
            return Bounds(self.estimate, -math.inf, math.inf, self.n)
        if self.error == 0:  # all documents agree
            return Bounds(self.estimate, self.estimate, self.estimate, self.n)
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        low, high = np.quantile(self._studentized, tails, method="inverted_cdf")
        # Few documents spread less than what they are drawn from, hence n / (n - 2).
        scale, least = self.error * math.sqrt(self.n / (self.n - 2)), student(confidence, self.n - 1) * self.error
        below, above = max(float(high) * scale, least), max(-float(low) * scale, least)
        return Bounds(self.estimate, self.estimate - below, self.estimate + above, self.n)

    @cached_property
    def _studentized(self) -> np.ndarray:
        """For each draw, the distance of its ratio from the estimate in its own standard errors."""
        # (ratio - estimate) and the residuals about the draw's own ratio are sums over the drawn documents: one product
        # of counts and columns for all draws.
        e_D, b_D = self.residual_D, self.sums_D2[:, 1]
        columns_D5 = np.stack((e_D, b_D, e_D**2, e_D * b_D, b_D**2), 1)
        e_R, b_R, ee_R, eb_R, bb_R = (_counts(self.n) @ columns_D5).T
        with np.errstate(divide="ignore", invalid="ignore"):
            off_R = e_R / b_R
            square_R = np.maximum(ee_R - 2 * off_R * eb_R + off_R**2 * bb_R, 0)
            error_R = np.sqrt(square_R * self.n / (self.n - 1)) / b_R
            return np.nan_to_num(off_R / error_R, posinf=np.inf, neginf=-np.inf)


@lru_cache(maxsize=4)
def _counts(n: int) -> np.ndarray:
    """Return how often each of n documents is in each draw, (R, n): always the same draws."""
    n_draws = max(FEWEST_DRAWS, min(DRAWS, DRAWN // n))
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), n_draws).astype(float)


class Crossed:
    """A mean over seeds and documents, with its interval at any confidence.

    sums_SD2: for each seed and document as in `OverDocuments`; how many were summed is the same for every seed.
    documents: the mean and its interval over documents alone. seeds_S: the mean of each seed.
    """

    def __init__(self, sums_SD2: ArrayLike) -> None:
        whole_SD2 = np.asarray(sums_SD2, dtype=float)
        self.documents = OverDocuments(whole_SD2.mean(0))
        self.seeds_S = whole_SD2[..., 0].sum(1) / whole_SD2[..., 1].sum(1)

    @property
    def n_seeds(self) -> int:
        return len(self.seeds_S)

    @property
    def estimate(self) -> float:
        return self.documents.estimate

    def interval(self, confidence: float = CONFIDENCE) -> Bounds:
        """Return the interval over both; over documents alone where there is one seed."""
        bounds = self.documents.interval(confidence)
        if self.n_seeds < 2:
            return bounds
        half = student(confidence, self.n_seeds - 1) * float(self.seeds_S.std(ddof=1)) / math.sqrt(self.n_seeds)
        low, high = (math.hypot(half, bounds.estimate - end) for end in (bounds.low, bounds.high))
        return bounds._replace(low=bounds.estimate - low, high=bounds.estimate + high)


def student(confidence: float, n_free: float) -> float:
    """Return the t within ±t of which Student's distribution with n_free degrees of freedom lies with this chance."""
    return float(stdtrit(n_free, (1 + confidence) / 2))
