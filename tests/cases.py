"""Which cases of a product run in `make test`, and which only in `make test-all`."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from coca_train.config.files import choices, config_dir


def experiments() -> list[str]:
    """Every experiment with a model of its own; the others take that of a folder."""
    return [name for name in choices("experiment", (config_dir(),)) if not name.endswith("_from_hf")]


def slow_unless(quick: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters for pytest: all of `every`, those not in `quick` marked slow."""
    chosen = list(quick)
    marked = [(case if isinstance(case, tuple) else (case,), case in chosen) for case in every]
    return [pytest.param(*case, marks=() if fast else pytest.mark.slow) for case, fast in marked]


def sampled(*axes: Iterable[Any], strength: int = 1) -> list[Any]:
    """The product of the axes for pytest, all slow but a few in which every value of an axis is (`covering`)."""
    names = [list(axis) for axis in axes]
    product = list(itertools.product(*(range(len(axis)) for axis in names)))
    quick = set(covering(product, strength))
    return [
        pytest.param(
            *(axis[value] for axis, value in zip(names, case, strict=True)),
            marks=() if case in quick else pytest.mark.slow,
        )
        for case in product
    ]


def covering(cases: Sequence[tuple[Any, ...]], strength: int) -> list[tuple[Any, ...]]:
    """A few of the cases, in which every value of a place is, if it is in any.

    strength: 2 for every pair of values of two places, 3 for every triple. Greedy, and the same every time.
    """
    groups = list(itertools.combinations(range(len(cases[0])), strength))

    def met(case: tuple[Any, ...]) -> set[Any]:
        return {(group, tuple(case[place] for place in group)) for group in groups}

    missing = set[Any]().union(*map(met, cases))
    chosen, times = list[tuple[Any, ...]](), Counter[tuple[int, Any]]()
    while missing:  # the most that is new, of values that came least
        best = max(cases, key=lambda case: (len(met(case) & missing), -sum(times[at] for at in enumerate(case))))
        missing -= met(best)
        chosen.append(best)
        times.update(enumerate(best))
    return chosen
