"""How far a model reads: what is asked at each length, and which evidence passes.

A model *reads* to a length when it passes there, and at every shorter length that was tested, in all that was asked:

* `holds`: the predictions with more than a training window of text before them lose at most HOLDS_WITHIN nats a token
  when they are read in windows of this length instead of windows of the training length with seven eighths of it to all
  of it before them: a longer window must be as good as the training window at its best. Within its training window a
  model holds by definition.
* `uses`: predictions with seven eighths of this length to all of it before them are surely better than the same
  predictions with their nearest half of it to five eighths, truncated and positions begun anew: by more than GAINS,
  which rounding may make. A flat curve of perplexity is no reach: a model may ignore everything far away (ALiBi, arXiv
  2108.12409, does), and then longer windows gain nothing.
* `finds`: what was hidden in a prompt of this length is found more often than FOUND_SHARE.
* `works with`: tasks that need more of the prompt than one place of it (arXiv 2404.06654) are done more often than
  that.

A part passes only on evidence: the 95 % interval, over documents (paired: the same predictions in both windows) or over
prompts, lies on the right side of what is asked. Lengths are tested upward and each part ends at its first failure. In
such a fixed order the chance that any length beyond the true reach is accepted is no larger than that of one test,
however many there are (Maurer, Hothorn and Lehmacher 1995), so nothing is corrected: one side of the interval, 2.5 %,
and where documents differ in a very skewed way up to 5 %. A length with fewer than LEAST documents or prompts is not
judged, nor any beyond it; where not even the shortest is, there is no verdict.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from coca_train.report.ties import LEAST

HOLDS_WITHIN = 0.01  # [nats per token]
GAINS = 1e-4  # [nats per token]: as much can be rounding, since kernels are chosen by length (measures/windows.py)
FOUND_SHARE = 0.8
CONFIDENCE = 0.95
RESAMPLES = 2000

Name = Literal["holds", "uses", "finds", "works with"]


class Bounds(NamedTuple):
    """An estimate and its 95 % interval. n: documents or prompts."""

    estimate: float
    low: float
    high: float
    n: int


class Evidence(NamedTuple):
    """What was seen at a length [tokens], and whether it passes."""

    length: int
    bounds: Bounds
    passed: bool


class Part(NamedTuple):
    """One thing that was asked, at ascending lengths. of: what was counted, documents or prompts. granted: the length
    [tokens] up to which it is passed by definition. stopped: why no length beyond was measured although it was asked,
    because the model has no positions for it, say; "": nothing was asked."""

    name: Name
    of: str
    evidence: tuple[Evidence, ...]
    granted: int = 0
    stopped: str = ""

    @property
    def judged(self) -> tuple[Evidence, ...]:
        """The lengths below the first of which too little was seen."""
        return tuple(takewhile(lambda seen: seen.bounds.n >= LEAST, self.evidence))

    @property
    def reach(self) -> int | None:
        """The length it is passed up to [tokens]; 0: not even the shortest; None: too little was seen of the shortest
        already, or nothing was measured."""
        if not self.judged and (self.evidence or self.stopped or not self.granted):
            return None
        passed = [seen.length for seen in takewhile(lambda seen: seen.passed, self.judged)]
        return passed[-1] if passed else self.granted

    @property
    def missing(self) -> int:
        """How many documents or prompts more are needed before anything can be said of the next length; 0: it was
        judged, or one before it failed."""
        beyond = self.evidence[len(self.judged) :]
        return LEAST - beyond[0].bounds.n if beyond and self.open else 0

    @property
    def open(self) -> bool:
        """Whether nothing that was judged failed: it may reach further."""
        return all(seen.passed for seen in self.judged)


def holds(length: int, excess_D2: Sequence[Sequence[float]], within: float = HOLDS_WITHIN) -> Evidence:
    """excess_D2: of each document the NLL [nats] of its predictions in windows of `length` less that in windows of the
    training length, and how many predictions."""
    bounds = mean_bounds(excess_D2)
    return Evidence(length, bounds, bounds.high <= within)


def uses(length: int, gain_D2: Sequence[Sequence[float]]) -> Evidence:
    """gain_D2: of each document the NLL [nats] of its predictions with the less of the two contexts less that with the
    more, and how many predictions."""
    bounds = mean_bounds(gain_D2)
    return Evidence(length, bounds, bounds.low > GAINS)


def finds(length: int, n_found: int, n_prompts: int, share: float = FOUND_SHARE) -> Evidence:
    """So many of the prompts of this length were answered as they must be."""
    bounds = share_bounds(n_found, n_prompts)
    return Evidence(length, bounds, bounds.low > share)


def mean_bounds(sums_D2: Any, confidence: float = CONFIDENCE) -> Bounds:
    """Of a ratio of sums over documents (n, 2): the first column's, differences, by the second's, predictions.

    Studentized bootstrap over documents (Efron and Tibshirani 1993, chapter 12): each draw's ratio is measured in its
    own standard error, by the delta method. Percentiles of the ratio itself are too narrow for twenty documents, and
    do not see that a few long ones carry it.
    """
    sums = np.asarray(sums_D2, dtype=float).reshape(-1, 2)
    n = len(sums)
    if n < 3:
        return Bounds(float(np.divide(*sums.sum(0))) if n else math.nan, -math.inf, math.inf, n)
    ratio, error = (float(value[0]) for value in _ratio(sums[None]))
    if error == 0:  # every document says the same
        return Bounds(ratio, ratio, ratio, n)
    ratios, errors = _ratio(sums[_draws(n)])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((ratios - ratio) / errors, posinf=np.inf, neginf=-np.inf)
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    error *= math.sqrt(n / (n - 2))  # few documents spread less than what they are drawn from
    return Bounds(ratio, ratio - float(high) * error, ratio - float(low) * error, n)


@lru_cache(maxsize=4)
def _draws(n: int) -> np.ndarray:
    """Which of n documents each draw has: (RESAMPLES, n), always the same ones."""
    return np.random.default_rng(0).integers(0, n, (RESAMPLES, n))


def _ratio(sums_RD2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of R samples of D documents: the ratio and its standard error."""
    n, whole_R2 = sums_RD2.shape[1], sums_RD2.sum(1)
    ratio_R = whole_R2[:, 0] / whole_R2[:, 1]
    residual_RD = sums_RD2[..., 0] - ratio_R[:, None] * sums_RD2[..., 1]
    return ratio_R, np.sqrt((residual_RD**2).sum(1) * n / (n - 1)) / whole_R2[:, 1]


def share_bounds(n_found: int, n_prompts: int) -> Bounds:
    """Of a share: the exact binomial interval (Clopper and Pearson 1934)."""
    if not n_prompts:
        return Bounds(float("nan"), 0.0, 1.0, 0)
    tail = (1 - CONFIDENCE) / 2
    low = _share_at(lambda p: 1 - _at_most(n_found - 1, n_prompts, p) < tail) if n_found else 0.0
    high = _share_at(lambda p: _at_most(n_found, n_prompts, p) > tail) if n_found < n_prompts else 1.0
    return Bounds(n_found / n_prompts, low, high, n_prompts)


def _share_at(below: Callable[[float], bool]) -> float:
    """Where `below`, true of small shares and false of large ones, changes: by halving."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _at_most(k: int, n: int, p: float) -> float:
    """Chance of at most k of n, each with chance p, 0 < p < 1."""
    ways = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1))
    return math.fsum(math.exp(w + i * math.log(p) + (n - i) * math.log1p(-p)) for i, w in enumerate(ways))
