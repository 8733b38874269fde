"""Common words: which ten words of a long list come most often (RULER, section 3: aggregation, CWE).

The list has ten made-up words 30 times each and `size` others three times each, shuffled and numbered; the ten are
asked for, and expected. It takes no haystack.
"""

import random
from collections.abc import Sequence

from coca_train.evaluation.measures.ruler.base import Sample, Task
from coca_train.evaluation.measures.ruler.haystack import words

COMMON, OFTEN, SELDOM = 10, 30, 3


def build(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
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


TASK = Task(name="common_words", about="the ten commonest words of a list", build=build, least=0, max_new_tokens=120)
