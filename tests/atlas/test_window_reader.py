"""A reader of the last tokens: what it has right, and that the page and docs/atlas.md say so."""

import random
from pathlib import Path

import pytest

from coca_train.atlas.matrix import NEAR
from coca_train.atlas.window_reader import needed, score, share
from coca_train.data.diagnostics import ASK, TASKS, WORDS, Example, examples
from tests.house.atlas import matrix

DOCS = Path(__file__).parents[2] / "docs" / "atlas.md"
LENGTHS = (128, 256, 512, 1024)
STORED = matrix()
WINDOW = STORED.lengths[0]
LOOKED_UP = ("copy", "reverse", "nearest", "first", "recall", "tags", "left", "right", "flip_flop")


@pytest.mark.parametrize("task", LOOKED_UP)
def test_what_lies_before_changes_no_answer(task: str) -> None:
    """By the solvers: symbols before the one that is said to be needed are drawn again. With another one in its place
    the answer is another."""
    draw, solve = random.Random(0), TASKS[task].solve
    for each in examples(task, 128, "test", 0, 10):
        for place, need in needed(each):
            symbols = list(each.symbols[: max(k for k in range(place) if each.symbols[k] == ASK)])
            number = place - len(symbols) - 1
            pool = [one for one in (["0", "1"] if task == "flip_flop" else WORDS) if one != symbols[-1]]
            for k in range(1, need):
                if symbols[k] in pool:
                    symbols[k] = draw.choice(pool)
            assert solve(symbols)[number] == each.symbols[place]
            symbols[need] = next(one for one in pool if one != each.symbols[place])
            assert solve(symbols)[number] != each.symbols[place]


BY_HAND = {
    "running 3 = 3 ; 1 = 4 ; 2 = 1 ;": [(3, 1), (7, 3), (11, 7)],  # the sum before
    "brackets ( [ ] { = } ) ;": [(6, 4), (7, 1)],
    "after bin kon ban lun | kon 2 = lun ;": [(9, 2)],  # what it counts from
    "parity 1 0 1 = 0 ;": [(5, 1)],
}


@pytest.mark.parametrize("text", BY_HAND)
def test_by_hand(text: str) -> None:
    symbols = tuple(text.split())
    assert list(needed(Example(symbols[0], symbols))) == BY_HAND[text]


@pytest.mark.parametrize("task", STORED.scored)
def test_near_are_the_tasks_that_it_knows(task: str) -> None:
    of = score(task, LENGTHS, STORED.chances(task)[1:], WINDOW)
    assert (of > 0.8) == (task in NEAR) and (of > 0.8 or of < 0.5)


def test_the_page_says_what_it_has_right() -> None:
    text = DOCS.read_text()
    far, near = (
        sum(score(task, LENGTHS, STORED.chances(task)[1:], WINDOW) for task in tasks) / len(tasks)
        for tasks in STORED.groups.values()
    )
    assert f"which are {far:.2f} far and {near:.2f} near" in text
    for task in STORED.scored:
        cells = " | ".join(f"{share(task, length, WINDOW):.0%}".replace("%", " %") for length in LENGTHS)
        assert f"| {task} | {cells} |" in text, f"| {task} | {cells} |"
    again = " | ".join(f"{chance:.0%}".replace("%", " %") for chance in STORED.chances("sort")[1:])
    assert f"| sort: the last answer again | {again} |" in text, again
