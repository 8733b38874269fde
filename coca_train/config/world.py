"""The processes of a launch, and the arithmetic of dividing work among them."""

import math
from typing import NamedTuple

FAR = 1_000_000


class World(NamedTuple):
    """The processes of this launch, as the launcher's environment tells."""

    rank: int
    size: int
    local_rank: int


def divisors(of: int, near: int) -> list[int]:
    """Divisors, the nearest first; of numbers beyond a million only what a million is enough to find."""
    small = [n for n in range(1, min(math.isqrt(of), FAR) + 1) if of % n == 0]
    return sorted({*small, *(of // n for n in small)}, key=lambda n: (abs(n - near), n))
