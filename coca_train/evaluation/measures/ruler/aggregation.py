"""Aggregation: which words of a text come most often (RULER, section 3). Neither task takes a haystack.

Common words (CWE). A list has ten made-up words 30 times each and `size` others three times each, shuffled and
numbered; the ten are asked for, and expected.

Frequent words (FWE). Of `size` words, the made-up word of rank k comes floor(size · k^-2 / ζ(2)) times, as long as that
is one or more; all are shuffled. The first three are asked for, and expected. From 30 words on they are more frequent
than the fourth.
"""

import math
import random
from collections.abc import Sequence

from coca_train.evaluation.measures.ruler.base import Sample, Task
from coca_train.evaluation.measures.ruler.haystack import words

COMMON, OFTEN, SELDOM = 10, 30, 3
FREQUENT, EXPONENT, ZETA = 3, 2, math.pi**2 / 6


def common_words(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    known = words(COMMON + size, draw)
    common, others = known[:COMMON], known[COMMON:]
    listed = common * OFTEN + others * SELDOM
    draw.shuffle(listed)
    return Sample(
        prompt=(
            "Below is a numbered list of words; some of them come more often than others.\n"
            f"{' '.join(f'{number}. {word}' for number, word in enumerate(listed, start=1))}\n"
            f"Question: which {COMMON} words come most often in the list?\n"
            f"Answer: the {COMMON} words that come most often are"
        ),
        expected=tuple(common),
    )


def counts(size: int) -> list[int]:
    """How often the words of rank 1, 2, ... come."""
    n_ranks = math.isqrt(math.floor(size / ZETA))
    return [math.floor(size / (ZETA * rank**EXPONENT)) for rank in range(1, n_ranks + 1)]


def frequent_words(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    times = counts(size)
    known = words(len(times), draw)
    text = [word for word, n in zip(known, times, strict=True) for _ in range(n)]
    draw.shuffle(text)
    return Sample(
        prompt=(
            "Below is a text in an unknown language; some of its words are frequent.\n"
            f"{' '.join(text)}\n"
            f"Question: which {FREQUENT} words are the most frequent?\n"
            f"Answer: the {FREQUENT} most frequent words are"
        ),
        expected=tuple(known[:FREQUENT]),
    )


TASKS = (
    Task(
        name="common_words", about="the ten commonest words of a list", build=common_words, least=0, max_new_tokens=120
    ),
    Task(
        name="frequent_words",
        about="the three commonest words of a text",
        build=frequent_words,
        least=30,
        max_new_tokens=50,
    ),
)
