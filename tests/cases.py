"""Which cases of a product run in `make test`, and which only in `make test-all`."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def slow_unless(quick: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters for pytest: all of `every`, those not in `quick` marked slow."""
    chosen = list(quick)
    marked = [(case if isinstance(case, tuple) else (case,), case in chosen) for case in every]
    return [pytest.param(*case, marks=() if fast else pytest.mark.slow) for case, fast in marked]


def sampled(*axes: Iterable[Any], strength: int = 1) -> list[Any]:
    """The product of the axes for pytest, all slow but a few in which every value of an axis is.

    strength: 2 for every pair of values of two axes, 3 for every triple. Greedy, and the same every time.
    """
    names = [list(axis) for axis in axes]
    product = list(itertools.product(*(range(len(axis)) for axis in names)))
    groups = list(itertools.combinations(range(len(names)), strength))

    def met(case: tuple[int, ...]) -> set[Any]:
        return {(group, tuple(case[axis] for axis in group)) for group in groups}

    missing = set().union(*(met(case) for case in product))
    quick, times = set[tuple[int, ...]](), [[0] * len(axis) for axis in names]
    while missing:  # the most that is new, of values that came least
        best = max(product, key=lambda case: (len(met(case) & missing), -sum(map(list.__getitem__, times, case))))
        missing -= met(best)
        quick.add(best)
        for counts, value in zip(times, best, strict=True):
            counts[value] += 1
    return [
        pytest.param(
            *(axis[value] for axis, value in zip(names, case, strict=True)),
            marks=() if case in quick else pytest.mark.slow,
        )
        for case in product
    ]
