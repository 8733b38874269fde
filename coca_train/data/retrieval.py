"""Prompts with their answers, to train models that retrieve.

A kind makes one text of a size, from 1 on:

* `echoes`: size common words on a line; after the first four, either a new word (two times of five), or two to eight
  words in a row from anywhere before. Nothing but their earlier place predicts such a row: a line that comes again as a
  whole could be copied by counting words, and small models do that instead.
* `echoes_apart`: the same with a sign or a word between the words, everywhere the same in a text.
* `recall`: the key-value recall of `+eval=recall`, in made-up words: size lines, of which 1 to size - 1, each number as
  likely, are pairs, and the rest questions with their answers, each about any of the pairs. (Of size 1: one of each.)
* `recall_common`: the same in common words, which small models learn sooner.
* `passkey`: the CoCA paper's prompt with size - 1 fillers, any number of them before the key, and "The passkey
  is 12345." on a line of its own.
* RULER's tasks by their names, in their own filler, with size - 1 units more than the fewest; the answer is all that is
  expected, in the order of the prompt.

The words are those of the prompts that evaluations ask; keys, values, names and places are drawn for each text.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

from coca_train.data.prompts import COCA, EVERYDAY, FORMS, Form, common, different, recall_answer, recall_prefix
from coca_train.data.ruler import NOISE, TASKS, Task

AT_FIRST, NEW = 4, 0.4  # of echoes: words before the first one, and the share of draws that are new words
JOINTS = (", ", ": ", " is ", "\n", '": "', '", "', '",\n"')  # between the words of echoes_apart

Kind = Callable[[int, random.Random], str]


def echoes(joints: Sequence[str], size: int, draw: random.Random) -> str:
    said: list[str] = []
    while len(said) < size:
        if len(said) < AT_FIRST or draw.random() < NEW:
            said.append(common(draw))
        else:
            begin = draw.randrange(len(said) - 1)
            said += said[begin : begin + draw.randint(2, 8)]
    joint = draw.choice(joints)
    line = joint.join(said[:size])
    return f'"{line}"\n' if '"' in joint else f"{line}\n"


def pairs(form: Form, size: int, draw: random.Random) -> str:
    n = draw.randint(1, max(1, size - 1))
    keys, values = (different(n, lambda: FORMS[form](draw)) for _ in range(2))
    questions = (draw.randrange(n) for _ in range(max(1, size - n)))
    lines = (f'"{keys[pair]}":{recall_answer(values[pair])}\n' for pair in questions)
    return f"{recall_prefix(keys, values, n)}\n}}\n{''.join(lines)}"


def passkey(size: int, draw: random.Random) -> str:
    n_before = draw.randint(0, size - 1)
    key = draw.randint(COCA.lowest, COCA.highest)
    return f"{COCA.prompt(key, n_before, size - 1 - n_before)}\nThe passkey is {key}.\n"


def answered(task: Task, size: int, draw: random.Random) -> str:
    sample = task.build(task.least + size - 1, draw, NOISE)
    *others, last = sorted(sample.expected, key=sample.prompt.index)
    return f"{sample.prompt} {' and '.join([', '.join(others), last] if others else [last])}.\n"


KINDS: dict[str, Kind] = {
    "echoes": partial(echoes, (" ",)),
    "echoes_apart": partial(echoes, JOINTS),
    "recall": partial(pairs, "words"),
    "recall_common": partial(pairs, "common"),
    "passkey": passkey,
    **{name: partial(answered, task) for name, task in TASKS.items()},
}
LARGEST = {"recall_common": len(EVERYDAY)}  # sizes, of kinds whose words come to an end
