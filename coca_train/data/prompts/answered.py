"""Prompts with their answers, to train models that retrieve.

A kind makes one text of a size, from 1 on:

* `copies`: size made-up words on a line, and the same line again, once to three times.
* `recall`: the key-value recall of `+eval=recall`, in made-up words: size lines, of which 1 to size - 1, each number as
  likely, are pairs, and the rest questions with their answers, each about any of the pairs. (Of size 1: one of each.)
* `passkey`: the CoCA paper's prompt with size - 1 fillers, of which any number stands before the key, and "The passkey
  is 12345." on a line of its own.
* RULER's tasks by their names, in their own filler, with size - 1 units more than the fewest; the answer is all that is
  expected, as it stands in the prompt from left to right.

The words are those of the prompts that evaluations ask; keys, values, names and places are drawn anew.
"""

import random
from collections.abc import Callable
from functools import partial

from coca_train.data.prompts import recall
from coca_train.data.prompts.passkeys import COCA
from coca_train.data.prompts.ruler import NOISE, TASKS, Task
from coca_train.data.prompts.words import word, words

Kind = Callable[[int, random.Random], str]


def copies(size: int, draw: random.Random) -> str:
    line = " ".join(words(size, draw))
    return "\n".join([line] * draw.randint(2, 4)) + "\n"


def pairs(size: int, draw: random.Random) -> str:
    n = draw.randint(1, max(1, size - 1))
    keys, values = words(n, draw), [word(draw) for _ in range(n)]
    questions = (draw.randrange(n) for _ in range(max(1, size - n)))
    lines = (f'"{keys[pair]}":{recall.right(values[pair])}\n' for pair in questions)
    return f"{recall.before(keys, values, n)}\n}}\n{''.join(lines)}"


def passkey(size: int, draw: random.Random) -> str:
    n_before = draw.randint(0, size - 1)
    key = draw.randint(COCA.lowest, COCA.highest)
    return f"{COCA.prompt(key, n_before, size - 1 - n_before)}\nThe passkey is {key}.\n"


def answered(task: Task, size: int, draw: random.Random) -> str:
    sample = task.build(task.least + size - 1, draw, NOISE)
    *others, last = sorted(sample.expected, key=sample.prompt.index)
    return f"{sample.prompt} {' and '.join([', '.join(others), last] if others else [last])}.\n"


KINDS: dict[str, Kind] = {
    "copies": copies,
    "recall": pairs,
    "passkey": passkey,
    **{name: partial(answered, task) for name, task in TASKS.items()},
}
