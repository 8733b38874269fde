"""What outlasts both documents and seeds: one interval over two crossed samples, and many of them at once.

A scheme is trained with S seeds, each model is measured on the same D documents, and seed s of two schemes had the same
batches: their difference is known for every seed and document. Its mean m_SD differs from the truth because other
documents would have been read (b_D), because other seeds would have been drawn (a_S), and because of both (e_SD):

    variance of the mean = var(a) / S + var(b) / D + var(e) / (S D)

The squared standard error over seeds (of the S means over documents) expects var(a) / S + var(e) / (S D), that over
documents (of the D means over seeds) var(b) / D + var(e) / (S D); together they are never too small. The interval is

    estimate +- sqrt(h_seeds^2 + h_documents^2)

with h_seeds half of Student's interval over seeds, S - 1 degrees of freedom, and h_documents the distance to the end of
the interval over documents on that side (`mean_bounds`, and never less than Student's: an end so far out that no draw
of the bootstrap reached it is not known by the bootstrap). For normal effects it covers at least as often as it says,
however the variances share (Banerjee 1960): the chance that a squared normal stays below x is concave in x, so below a
mean of two bounds it is no smaller than the mean of their own chances, each of which is the level. Degrees of freedom
put together from both (Satterthwaite 1946) are not safe here: where two seeds happen to agree, theirs are lost, and of
100 intervals as few as 90 cover.

It is wider than the interval over documents and than the one over seeds: a difference that outlasts it outlasts each.
Two seeds leave Student's t one degree of freedom, 12.7 standard errors; one seed says nothing.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from coca_train.evaluation.measures.reach import CONFIDENCE, Bounds, mean_bounds


class Crossed(NamedTuple):
    """A mean and its interval over seeds and documents, which has no ends where there is one seed. documents: the
    interval over documents alone. seeds: the mean of each seed."""

    estimate: float
    low: float
    high: float
    documents: Bounds
    seeds: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """What it is judged by: of one seed the interval over documents alone, which says nothing of seeds."""
        return self.documents[1:3] if len(self.seeds) == 1 else (self.low, self.high)

    @property
    def told(self) -> bool:
        """Whether it is judged to be another than 0."""
        return apart(*self.interval)


def apart(low: float, high: float) -> bool:
    """Whether an interval leaves 0 out."""
    return low > 0 or high < 0


def crossed_bounds(sums_SD2: Any, confidence: float = CONFIDENCE) -> Crossed:
    """Of a ratio of sums: the first of each pair, of a seed and a document, by the second, the same for every seed."""
    sums_SD2 = np.asarray(sums_SD2, dtype=float)
    seeds_S = sums_SD2[..., 0].sum(1) / sums_SD2[..., 1].sum(1)
    n_seeds = len(sums_SD2)
    whole = _over_documents(sums_SD2.mean(0), confidence)
    seeds = tuple(map(float, seeds_S))
    if n_seeds < 2:
        return Crossed(whole.estimate, -math.inf, math.inf, whole, seeds)
    half = student(confidence, n_seeds - 1) * float(seeds_S.std(ddof=1)) / math.sqrt(n_seeds)
    low, high = (math.hypot(half, whole.estimate - end) for end in (whole.low, whole.high))
    return Crossed(whole.estimate, whole.estimate - low, whole.estimate + high, whole, seeds)


def _over_documents(sums_D2: np.ndarray, confidence: float) -> Bounds:
    bounds, n = mean_bounds(sums_D2, confidence), len(sums_D2)
    if n < 3:
        return bounds
    residual_D = sums_D2[:, 0] - bounds.estimate * sums_D2[:, 1]
    error = math.sqrt((residual_D**2).sum() * n / (n - 1)) / float(sums_D2[:, 1].sum())
    least = student(confidence, n - 1) * error
    return bounds._replace(low=min(bounds.low, bounds.estimate - least), high=max(bounds.high, bounds.estimate + least))


def student(confidence: float, n_free: int) -> float:
    """The t that Student's distribution with n_free degrees of freedom stays within, on both sides, with this chance.

    Halving of the closed form of the distribution (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, n_free) < confidence else (low, middle)
    return math.sqrt(n_free) * math.tan(low)


def _within(theta: float, n_free: int) -> float:
    """Chance that |t| <= sqrt(n_free) tan(theta)."""
    sine, cosine, odd = math.sin(theta), math.cos(theta), n_free % 2
    term, whole = cosine if odd else 1.0, 0.0
    for k in range(1 + odd, n_free, 2):  # 1, 3, 5 ... or 2, 4, 6 ...
        whole += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (theta + sine * whole) if odd else sine * whole


def together(sums: Sequence[Any]) -> list[Crossed]:
    """Of several such means, each with the interval that it was judged by: in at most 5 % of draws any of them is told
    falsely (Holm 1979).

    Of n that are left each is judged at 5 % / n; while any is told, the others are judged anew without it.
    """
    left, judged = set(range(len(sums))), dict[int, Crossed]()
    while left:
        bounds = {index: crossed_bounds(sums[index], 1 - (1 - CONFIDENCE) / len(left)) for index in left}
        told = {index for index, each in bounds.items() if each.told} or left
        judged |= {index: bounds[index] for index in told}
        left = left - told
    return [judged[index] for index in range(len(sums))]
