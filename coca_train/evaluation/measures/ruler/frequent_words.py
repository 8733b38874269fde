"""Frequent words: the three commonest words where frequencies fall by Zipf's law (RULER, section 3: aggregation, FWE).

Of `size` words, the made-up word of rank k comes floor(size · k^-2 / ζ(2)) times, as long as that is one or more; all
are shuffled. The first three are asked for, and expected. From 30 words on they are more frequent than the fourth.
"""

import math
import random
from collections.abc import Sequence

from coca_train.evaluation.measures.ruler.base import Sample, Task
from coca_train.evaluation.measures.ruler.haystack import words

ASKED, EXPONENT, ZETA = 3, 2, math.pi**2 / 6


def counts(size: int) -> list[int]:
    """How often the words of rank 1, 2, ... come."""
    n_ranks = math.isqrt(math.floor(size / ZETA))
    return [math.floor(size / (ZETA * rank**EXPONENT)) for rank in range(1, n_ranks + 1)]


def build(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    found = counts(size)
    known = words(len(found), draw)
    text = [word for word, n in zip(known, found, strict=True) for _ in range(n)]
    draw.shuffle(text)
    return Sample(
        prompt=(
            "Below is a text in an unknown language; some of its words are frequent.\n"
            f"{' '.join(text)}\n"
            f"Question: which {ASKED} words are the most frequent?\n"
            f"Answer: the {ASKED} most frequent words are"
        ),
        expected=tuple(known[:ASKED]),
    )


TASK = Task(
    name="frequent_words", about="the three commonest words of a text", build=build, least=30, max_new_tokens=50
)
