"""Variable tracking: a chain of assignments hidden in text (RULER, section 3: multi-hop tracing).

A chain is "VAR A = 12345", "VAR B = VAR A", ... over four hops, so five variables, hidden in this order; names are five
capital letters, the number has five digits. Asked for are all variables with that number; expected are the five names.
"""

import random
import string
from collections.abc import Sequence
from itertools import pairwise

from coca_train.evaluation.measures.ruler.base import Sample, Task
from coca_train.evaluation.measures.ruler.haystack import hidden

HOPS, LETTERS = 4, 5


def build(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(draw.choices(string.ascii_uppercase, k=LETTERS))] = None
    chain, number = list(names), draw.randint(10_000, 99_999)
    lines = [f"VAR {chain[0]} = {number}", *(f"VAR {later} = VAR {former}" for former, later in pairwise(chain))]
    return Sample(
        prompt=(
            "Assignments of variables are hidden in the text below. Follow them: you will be asked for a value.\n"
            f"{hidden(haystack, size, lines, draw, in_order=True)}\n"
            f"Question: which variables have the value {number}?\n"
            f"Answer: the {len(chain)} variables with the value {number} are"
        ),
        expected=tuple(chain),
    )


TASK = Task(name="variables", about="a chain of assignments", build=build, least=0, max_new_tokens=30)
