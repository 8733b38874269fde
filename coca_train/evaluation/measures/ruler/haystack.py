"""Text to hide things in, and made-up words."""

import random
import re
from collections.abc import Iterable, Sequence

from coca_train.data.passkeys import FILLER

CONSONANTS, VOWELS, SYLLABLES = "bdfgklmnprstvz", "aeiou", 3

NOISE = (FILLER,)  # the passkey's filler, one unit


def essays(texts: Iterable[str]) -> tuple[str, ...]:
    """The sentences of some documents, in order, white space made single spaces."""
    return tuple(
        sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if sentence
    )


def hidden(haystack: Sequence[str], size: int, needles: Sequence[str], draw: random.Random, in_order: bool) -> str:
    """The first `size` sentences of the haystack with the needles between them, a line each. Every needle's gap is
    drawn from the size + 1 there are, all equally likely; in_order: needles keep their order."""
    gaps = [int(draw.random() * (size + 1)) for _ in needles]
    placed = sorted(gaps) if in_order else gaps
    lines = [(2 * index + 1, haystack[index % len(haystack)]) for index in range(size)]
    lines += [(2 * gap, needle) for gap, needle in zip(placed, needles, strict=True)]
    return "\n".join(line for _, line in sorted(lines, key=lambda pair: pair[0]))


def words(n: int, draw: random.Random) -> list[str]:
    """n different made-up words of three syllables, such as bamilo; drawn one after the other."""
    drawn: dict[str, None] = {}
    while len(drawn) < n:
        drawn["".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) for _ in range(SYLLABLES))] = None
    return list(drawn)
