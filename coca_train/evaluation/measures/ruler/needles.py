"""Needles in a haystack: numbers of named things, hidden in text (RULER, section 3: NIAH).

A needle is the line "The special number of KEY is VALUE."; KEY an adjective and a noun, VALUE of seven digits, both
drawn anew for each case, all different. The haystack's unit is a sentence.

* needle: one needle, its number is asked for;
* needle_keys: four needles with keys of their own, one number is asked for, three distract;
* needle_values: four needles with one key, all four numbers are asked for;
* needle_queries: four needles with keys of their own, all four numbers are asked for.
Expected are the numbers asked for.
"""

import random
from collections.abc import Sequence
from functools import partial

from coca_train.evaluation.measures.ruler.base import Sample, Task
from coca_train.evaluation.measures.ruler.haystack import hidden

MANY = 4  # needles of the three harder tasks
MAX_NEW_TOKENS = 128

ADJECTIVES = (
    "amber", "ancient", "brave", "bright", "calm", "clever", "copper", "crooked", "distant", "eager", "early", "faded",
    "gentle", "golden", "hollow", "humble", "icy", "ivory", "jolly", "lonely", "lucky", "mellow", "misty", "narrow",
    "noble", "pale", "patient", "proud", "quick", "quiet", "rapid", "round", "rusty", "silent", "silver", "steady",
    "sunny", "tall", "velvet", "wild",
)  # fmt: skip
NOUNS = (
    "anchor", "badger", "barrel", "bridge", "candle", "canyon", "castle", "cellar", "comet", "engine", "falcon",
    "feather", "garden", "glacier", "hammer", "harbour", "island", "kettle", "ladder", "lantern", "marble", "meadow",
    "mirror", "orchard", "otter", "piano", "pillow", "planet", "puzzle", "raven", "saddle", "salmon", "shadow", "spoon",
    "stable", "temple", "thunder", "turtle", "valley", "window",
)  # fmt: skip


def build(n_keys: int, n_values: int, n_asked: int, size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    """n_keys keys with n_values numbers each, of which the first n_asked keys are asked for."""
    pairs = draw.sample([f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS], n_keys)
    numbers = draw.sample(range(1_000_000, 10_000_000), n_keys * n_values)
    needles = [
        (key, str(numbers[place * n_values + turn])) for place, key in enumerate(pairs) for turn in range(n_values)
    ]
    lines = [f"The special number of {key} is {value}." for key, value in needles]
    queried = pairs[:n_asked]
    names = queried[0] if len(queried) == 1 else f"{', '.join(queried[:-1])} and {queried[-1]}"
    one = n_values * n_asked == 1
    what = f"the special number of {names}" if one else f"all the special numbers of {names}"
    return Sample(
        prompt=(
            "Special numbers are hidden in the text below. Remember them: you will be asked for them at the end.\n"
            f"{hidden(haystack, size, lines, draw, in_order=False)}\n"
            f"Question: what {'is' if one else 'are'} {what}?\n"
            f"Answer: {what} {'is' if one else 'are'}"
        ),
        expected=tuple(value for key, value in needles if key in queried),
    )


def _task(name: str, about: str, n_keys: int, n_values: int, n_asked: int) -> Task:
    builder = partial(build, n_keys, n_values, n_asked)
    return Task(name=name, about=about, build=builder, least=0, max_new_tokens=MAX_NEW_TOKENS)


TASKS = (
    _task("needle", "one hidden number", 1, 1, 1),
    _task("needle_keys", "one of four hidden numbers", MANY, 1, 1),
    _task("needle_values", "four hidden numbers under one name", 1, MANY, 1),
    _task("needle_queries", "four hidden numbers under four names", MANY, 1, MANY),
)
