"""What prompts made here have in common: fitted to a length, things at chosen places.

Length. A prompt is built around so many units (sentences, pairs, shots). At length L [tokens] it gets a size at which
it has at most L tokens, and either at least 99 % of them, or more than L with one unit more; it is found by what a unit
costs on average. When the smallest prompt is longer than L, there is none.

Draws. A case's draws come from a generator seeded by what it is (suite, seed, L, number of the case), the same at every
size tried; so neither the number of cases nor another tokenizer changes what is drawn.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol, TypeVar

PROBE = 32  # units more than the smallest prompt, to see what a unit costs
FULL = 0.99  # share of a length that will do

Encode = Callable[[str], list[int]]
Places = Literal["uniform", "even"]


class Sized(Protocol):
    """A prompt as one model reads it."""

    @property
    def tokens(self) -> Sequence[int]: ...


T = TypeVar("T", bound=Sized)


def filled(build: Callable[[int, int], T], n_cases: int, length: int, least: int) -> list[T]:
    """The prompts of one length [tokens]; none when it has no room. build(case, size); least: smallest size."""
    prompts = []
    for case in range(n_cases):
        prompt = fitted(partial(build, case), length, least)
        if prompt is None:
            return []
        prompts.append(prompt)
    return prompts


def fitted(at: Callable[[int], T], length: int, least: int) -> T | None:
    """See the module's definition."""
    best = at(least)
    n_fixed, size, low, high, halve = len(best.tokens), least + PROBE, least, None, False
    if n_fixed > length:
        return None
    while (high is None or high - low > 1) and len(best.tokens) < FULL * length:
        prompt = at(size)
        if len(prompt.tokens) <= length:
            best, low = prompt, size
        else:
            high = size
        # A guess by what units have cost on average lands close; a bisection alone would take ten prompts and more.
        per_unit = max(1, len(prompt.tokens) - n_fixed) / (size - least)
        size = max(low + 1, least + math.floor((length - n_fixed) / per_unit))
        if high is not None:  # every other size is the middle one, so that it ends soon whatever units cost
            size = (low + high) // 2 if halve or size >= high else size
            halve = not halve
    return best


def place(share: float, case: int, last: int, places: Places, n_depths: int) -> int:
    """Which of the places 0 ... last a case has. uniform: by its share in [0, 1), all equally likely. even: it aims at
    the depth (case mod n_depths) / (n_depths - 1), rounded, so that equally many stand at each depth."""
    if places == "uniform":
        return int(share * (last + 1))
    return round(last * (case % n_depths) / max(1, n_depths - 1))
