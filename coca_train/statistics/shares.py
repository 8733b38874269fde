"""A share of cases, such as of passkeys that were found, and how far it may be from the true one."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from coca_train.statistics.intervals import CONFIDENCE, Bounds, OverDocuments

Z_95 = 1.959963984540054  # a standard normal variable lies within ±Z with probability 0.95


def wilson(n_successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """Return the interval of a share (Wilson, 1927), never below 0 or above 1, and sensible at 0 and n of n.

    (low, high): the shares p for which n_successes is within z standard deviations of n p.

    Raises ValueError for n = 0, which says nothing.
    """
    if n <= 0:
        raise ValueError("an interval needs at least one case")
    share, square = n_successes / n, z * z / n
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / n + square / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def clustered_share(found_U: ArrayLike, asked_U: ArrayLike) -> Bounds:
    """Return a share of questions that come several in a unit, with its interval over units: Wilson's, of as many
    independent questions as have the share's standard error (Kish 1965; Korn and Graubard 1998), and of as many as
    there are units where none or all are answered.

    found_U, asked_U: of each unit, the questions answered and all. Raises ValueError where nothing is asked.
    """
    units = OverDocuments(np.stack((found_U, asked_U), 1))
    share, n_asked = units.estimate, float(units.sums_D2[:, 1].sum())
    n = float(units.n)
    if 0 < share < 1 and 0 < units.error < math.inf:
        n = min(n_asked, share * (1 - share) / units.error**2)
    return Bounds(share, *wilson(share * n, n), units.n)


def share_bounds(n_found: int, n_prompts: int, confidence: float = CONFIDENCE) -> Bounds:
    """Return a share with its exact binomial interval (Clopper and Pearson 1934)."""
    if not n_prompts:
        return Bounds(math.nan, 0.0, 1.0, 0)
    tail, n_missed = (1 - confidence) / 2, n_prompts - n_found
    low = float(betaincinv(n_found, n_missed + 1, tail)) if n_found else 0.0
    high = float(betainccinv(n_found + 1, n_missed, tail)) if n_missed else 1.0
    return Bounds(n_found / n_prompts, low, high, n_prompts)


def paired_shares(n_gained: int, n_lost: int, n_prompts: int, confidence: float = CONFIDENCE) -> Bounds:
    """Return the difference of two shares of the same prompts: `n_gained` only the first has, `n_lost` only the second.

    Given how many prompts the two answer differently, the share of them that the first one has is binomial: the exact
    interval of it, so that 0 is left out where McNemar's exact test (1947) rejects at this confidence.
    """
    n_differ = n_gained + n_lost
    if not n_prompts:
        return Bounds(math.nan, -1.0, 1.0, 0)
    if not n_differ:
        return Bounds(0.0, 0.0, 0.0, n_prompts)
    low, high = ((2 * end - 1) * n_differ / n_prompts for end in share_bounds(n_gained, n_differ, confidence)[1:3])
    return Bounds((n_gained - n_lost) / n_prompts, low, high, n_prompts)
