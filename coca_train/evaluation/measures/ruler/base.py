"""What a task is, how its prompt is fitted to a length, and how an answer is scored.

Length. A task builds its prompt around a haystack of `size` units (sentences, words). At length L [tokens] it gets a
size at which the prompt has at most L tokens, and either at least 99 % of them, or more than L with one unit more; it
is found by what a unit costs on average. When the smallest prompt is longer than L, there is none. A case's draws come
from a generator seeded by (task, seed, L, case), the same at every size tried.

Score. The share of the expected strings that the generated text contains, upper and lower case taken as equal
(RULER's string match over all references); 1 when all are there.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PROBE = 32  # units more than the smallest prompt, to see what a unit costs
FULL = 0.99  # share of a length that will do

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt and the strings its answer should contain."""

    prompt: str
    expected: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """build(size, draw, haystack): the prompt with `size` units; haystack: sentences, taken from the first one on and
    over again. least: smallest size. max_new_tokens: length of an answer [tokens]."""

    name: str
    about: str
    build: Callable[[int, random.Random, Sequence[str]], Sample]
    least: int
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as one model reads it."""

    tokens: tuple[int, ...]
    expected: tuple[str, ...]


def cases(
    task: Task,
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    haystack: Sequence[str],
    seed: int,
    begin: Sequence[int] = (),
) -> list[Prompt]:
    """The prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt."""
    prompts = []
    for index in range(n_cases):

        def at(size: int, name: str = f"{task.name} {seed} {length} {index}") -> Prompt:
            sample = task.build(size, random.Random(name), haystack)
            return Prompt(tokens=(*begin, *encode(sample.prompt)), expected=sample.expected)

        prompt = fitted(at, length, task.least)
        if prompt is None:
            return []
        prompts.append(prompt)
    return prompts


def fitted(at: Callable[[int], Prompt], length: int, least: int) -> Prompt | None:
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


def score(expected: Sequence[str], answer: str) -> float:
    """Share of the expected strings in the answer."""
    text = answer.casefold()
    return sum(string.casefold() in text for string in expected) / len(expected)
