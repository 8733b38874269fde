"""Which rank is slow: rates of all ranks, measured in the same moments.

Shape legend: R ranks, N moments.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.025  # of the interval, on one side
LEAST = 6  # moments; from fewer no such interval can be made: the highest of 5 is below the median in 1 of 32


class Slow(NamedTuple):
    """A rank's rate as a share of its peers' median. ratio: the median over all moments; at_most: the upper end of its
    one-sided 97.5 % interval."""

    ratio: float
    at_most: float


def at_most(values: Sequence[float]) -> float:
    """Upper end of the one-sided 97.5 % interval of the median: an order statistic, so whatever the distribution is.

    Of N values the k-th largest is below the median with probability P(Bin(N, 1/2) < k). Infinite for fewer than 6.
    """
    n, k, chance = len(values), 0, 0.0
    while k < n and chance + math.comb(n, k) / 2**n <= LEVEL:
        chance += math.comb(n, k) / 2**n
        k += 1
    return sorted(values, reverse=True)[k - 1] if k else math.inf


def slow_ranks(rates_RN: Sequence[Sequence[float]], factor: float) -> dict[int, Slow]:
    """Ranks that are slower than the median of their peers by more than `factor`, beyond the noise measured with them.

    Each rate is held against the rates of the others in the same moment, so that what slows all of a machine down for a
    while says nothing about a rank. Nobody is slow where there is one rank, or fewer than 6 moments.
    """
    n = min((len(rates) for rates in rates_RN), default=0)
    slow = {}
    for rank, rates in enumerate(rates_RN):
        ratios = []
        for i in range(n):
            peers = statistics.median([others[i] for other, others in enumerate(rates_RN) if other != rank] or [0.0])
            ratios.append(rates[i] / peers if peers > 0 else 1.0)
        if n >= LEAST and (limit := at_most(ratios)) < 1 / factor:
            slow[rank] = Slow(statistics.median(ratios), limit)
    return slow


def slow_links(
    rates_L: Mapping[tuple[int, int], Sequence[float]], same_host: Mapping[tuple[int, int], bool], factor: float
) -> dict[tuple[int, int], Slow]:
    """The same of links between two ranks. Those inside a host are held against each other, and those between hosts."""
    slow = {}
    for kind in (True, False):
        links = [link for link in rates_L if same_host[link] is kind]
        by_number = slow_ranks([rates_L[link] for link in links], factor)
        slow |= {links[number]: value for number, value in by_number.items()}
    return slow


def ends_of(slow: Sequence[tuple[int, int]], links: Sequence[tuple[int, int]]) -> list[int]:
    """Ranks that all slow links may be blamed on: each of their links is slow, and they have more than one."""
    ranks = sorted({rank for link in slow for rank in link})
    own = {rank: [link for link in links if rank in link] for rank in ranks}
    return [rank for rank in ranks if len(own[rank]) > 1 and all(link in slow for link in own[rank])]


class Offset(NamedTuple):
    """How far a clock is ahead of another [seconds], and by how much that may be wrong."""

    ahead_s: float
    uncertainty_s: float


def offsets(stamps_RN2: Sequence[Sequence[Sequence[float]]]) -> list[Offset]:
    """Each rank's clock against rank 0's. stamps_RN2: when a rank entered and left each of N barriers, by its own clock
    [seconds].

    Nobody leaves a barrier before all have entered it. So what rank r is ahead of rank 0 is at most (its time of
    leaving) - (rank 0's of entering), and at least (its time of entering) - (rank 0's of leaving), in every barrier:
    the truth lies where all these intervals meet, however long a barrier took.
    """
    of_0, clocks = stamps_RN2[0], []
    for own in stamps_RN2:
        least = max(entered - left_0 for (entered, _), (_, left_0) in zip(own, of_0, strict=True))
        most = min(left - entered_0 for (_, left), (entered_0, _) in zip(own, of_0, strict=True))
        clocks.append(Offset((least + most) / 2, abs(most - least) / 2))
    return clocks
