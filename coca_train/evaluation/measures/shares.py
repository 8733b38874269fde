"""A share of cases, such as of passkeys that were found, and how far it may be from the true one."""

import math

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
