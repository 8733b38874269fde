"""Words nobody has read before."""

import random
from collections.abc import Callable
from typing import TypeVar

CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3

Thing = TypeVar("Thing")


def different(n: int, one: Callable[[], Thing]) -> list[Thing]:
    """n different things, drawn one after the other: the first ones are the same whatever n is."""
    drawn: dict[Thing, None] = {}
    while len(drawn) < n:
        drawn[one()] = None
    return list(drawn)


def word(draw: random.Random) -> str:
    """A made-up word of three syllables, such as bamilo."""
    return "".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(SYLLABLES))


def words(n: int, draw: random.Random) -> list[str]:
    """n different made-up words."""
    return different(n, lambda: word(draw))
