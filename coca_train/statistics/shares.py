"""A share of cases, such as of passkeys that were found, and how far it may be from the true one."""

import math
from collections.abc import Callable
from functools import lru_cache

from coca_train.statistics.intervals import CONFIDENCE, Bounds

Z_95 = 1.959963984540054  # a standard normal variable is within ±Z with probability 0.95


def wilson(n_successes: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Interval of a share (Wilson, 1927), never below 0 or above 1, and sensible at 0 and n of n.

    (low, high): the shares p for which n_successes is within z standard deviations of n p.

    Raises ValueError for n = 0, which says nothing.
    """
    if n <= 0:
        raise ValueError("an interval needs at least one case")
    share, square = n_successes / n, z * z / n
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / n + square / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@lru_cache(maxsize=4096)
def share_bounds(n_found: int, n_prompts: int, confidence: float = CONFIDENCE) -> Bounds:
    """Of a share: the exact binomial interval (Clopper and Pearson 1934)."""
    if not n_prompts:
        return Bounds(math.nan, 0.0, 1.0, 0)
    tail = (1 - confidence) / 2
    low = _share_at(lambda p: 1 - _at_most(n_found - 1, n_prompts, p) < tail) if n_found else 0.0
    high = _share_at(lambda p: _at_most(n_found, n_prompts, p) > tail) if n_found < n_prompts else 1.0
    return Bounds(n_found / n_prompts, low, high, n_prompts)


def paired_shares(n_gained: int, n_lost: int, n_prompts: int, confidence: float = CONFIDENCE) -> Bounds:
    """Of the difference of two shares of the same prompts: `n_gained` only the first has, `n_lost` only the second.

    Given how many prompts the two answer differently, the share of them that the first one has is binomial: the exact
    interval of it, so that 0 is left out where McNemar's exact test (1947) rejects at this confidence.
    """
    n_differ = n_gained + n_lost
    if not n_prompts or not n_differ:
        return Bounds(0.0 if n_prompts else math.nan, 0.0 if n_prompts else -1.0, 0.0 if n_prompts else 1.0, n_prompts)
    of_differing = share_bounds(n_gained, n_differ, confidence)
    low, high = ((2 * end - 1) * n_differ / n_prompts for end in of_differing[1:3])
    return Bounds((n_gained - n_lost) / n_prompts, low, high, n_prompts)


def _share_at(below: Callable[[float], bool]) -> float:
    """Where `below`, true of small shares and false of large ones, changes: by halving."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _at_most(k: int, n: int, p: float) -> float:
    """Chance of at most k of n, each with chance p, 0 < p < 1: the regularized incomplete beta function I(1 - p)."""
    if k < 0 or k >= n:
        return float(k >= n)
    a, b, x = n - k, k + 1, 1 - p
    # The continued fraction converges fast on the near side of the mean; the other side is what is left of 1.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, p)
    return _incomplete_beta(a, b, x)


def _incomplete_beta(a: int, b: int, x: float) -> float:
    """By its continued fraction (Abramowitz and Stegun 1964, 26.5.8), evaluated from the front (Lentz 1976)."""
    least = 1e-300
    upper, lower = 1.0, 1 - (a + b) * x / (a + 1)
    lower = 1 / (lower if abs(lower) > least else least)
    value = lower
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower, upper = 1 + term * lower, 1 + term / upper
            lower, upper = (1 / (lower if abs(lower) > least else least), upper if abs(upper) > least else least)
            value *= lower * upper
        if abs(lower * upper - 1) < 1e-14:
            break
    front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    return math.exp(front + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) * value
