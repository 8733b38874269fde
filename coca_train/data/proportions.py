"""Which source the i-th sample comes from, and the how-manieth of that source it is: exact, O(sources).

A chain of Bresenham lines over exact integers: source j gets floor(i w_j / R_j + 1/2) of the first i samples
that reach it (R_j: the weights from j on), the rest goes on to j + 1. Counts never fall, every sample hits
exactly one source, and no source is ever more than a few samples away from its share.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


class Proportions:
    """Exact interleaving of sources by weight.

    weights: positive numbers; a float counts as the decimal it prints as (0.1 and 0.9 are 1 : 9).
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]
        assert min(exact) > 0, weights
        scale = math.lcm(*(weight.denominator for weight in exact))
        numbers = [int(weight * scale) for weight in exact]
        divisor = math.gcd(*numbers)
        self.weights = [number // divisor for number in numbers]
        self._rest = [sum(self.weights[j:]) for j in range(len(numbers))]

    def _count(self, i: int, j: int) -> int:
        """How many of the first i samples that reach source j stop there."""
        return (2 * i * self.weights[j] + self._rest[j]) // (2 * self._rest[j])

    def locate(self, i: int) -> tuple[int, int]:
        """Sample i -> (source, k): it is the k-th sample of that source, both from 0."""
        for j in range(len(self.weights)):
            count = self._count(i, j)
            if self._count(i + 1, j) > count:
                return j, count
            i -= count
        raise AssertionError("the last source takes every sample that reaches it")

    def counts(self, n: int) -> list[int]:
        """How many of the first n samples come from each source."""
        counts = []
        for j in range(len(self.weights)):
            counts.append(self._count(n, j))
            n -= counts[-1]
        return counts

    def longest(self, j: int, available: int) -> int:
        """The largest n with counts(n)[j] <= available."""
        low, high = available, available + 1
        while self.counts(high)[j] <= available:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.counts(middle)[j] <= available else (low, middle)
        return low
