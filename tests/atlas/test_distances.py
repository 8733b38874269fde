"""How far back lies what an answer needs: docs/atlas.md says it of the examples that are asked, and scores go by it."""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from coca_train.atlas.matrix import NEAR
from coca_train.data.diagnostics import ASK, BAR, BRACKETS, TASKS, WORDS, WRITE, Example, chance, examples
from tests.house.atlas import matrix

DOCS = Path(__file__).parents[2] / "docs" / "atlas.md"
WINDOW, LENGTHS, SEED = 63, (128, 256, 512, 1024), 0  # the seed of an evaluation
ASKED = [task for task in matrix().tasks if task != "sort"]


def needed(each: Example) -> Iterator[tuple[int, int]]:
    """Yield of each answer its place and that of the farthest symbol that it needs."""
    symbols, task = list(each.symbols), each.task
    for at in each.answers:
        ask = at.start - 1
        bar = symbols.index(BAR) if BAR in symbols else 0
        for number, place in enumerate(at):
            if task == "copy":
                yield place, 1 + number
            elif task == "reverse":
                yield place, ask - 1 - number
            elif task == "nearest":
                yield place, 1 + max(k for k in range(1, bar - 1) if symbols[k] == symbols[ask - 1])
            elif task == "recall":
                yield place, 1 + max(k for k in range(1, bar, 2) if symbols[k] == symbols[ask - 1])
            elif task in ("left", "right"):
                yield place, int(symbols[ask - 1]) if task == "left" else bar - int(symbols[ask - 1])
            elif task == "running":
                yield place, max(ask - 3, 1)  # the sum before
            elif task == "flip_flop":
                yield place, 1 + max(k for k in range(1, ask) if symbols[k] == WRITE)
            elif task == "brackets":
                opened = []
                for k in range(1, ask):
                    opened = [*opened, k] if symbols[k] in BRACKETS else opened[:-1]
                yield place, opened[-1 - number]


@cache
def drawn(task: str, length: int) -> list[Example]:
    return list(examples(task, length, "test", SEED, 50))


@pytest.mark.parametrize("task", [task for task in ASKED if task not in ("running", "brackets")])
def test_what_lies_before_changes_no_answer(task: str) -> None:
    """Symbols before the one that is said to be needed are drawn again; what it is, is another answer."""
    draw, solve = random.Random(0), TASKS[task].solve
    pool = ["0", "1"] if task == "flip_flop" else list(WORDS)
    for each in drawn(task, 128)[:10]:
        for place, need in needed(each):
            symbols = list(each.symbols[: max(k for k in range(place) if each.symbols[k] == ASK)])
            number = place - len(symbols) - 1
            before = [k for k in range(1, need) if symbols[k] in pool and symbols[k] != symbols[-1]]
            for k in before:
                symbols[k] = draw.choice(pool)
            assert solve(symbols)[number] == each.symbols[place]
            symbols[need] = next(one for one in pool if one not in (each.symbols[place], symbols[-1]))
            assert solve(symbols)[number] != each.symbols[place]


def far(task: str, length: int) -> float:
    """Return the share of answers that need a symbol more than a window back."""
    each = [place - need > WINDOW for one in drawn(task, length) for place, need in needed(one)]
    return sum(each) / len(each)


@pytest.mark.parametrize("task", ASKED)
def test_near_are_the_tasks_that_a_reader_of_the_last_tokens_knows(task: str) -> None:
    """One that has every answer right that it can see, and guesses the others; as scores are, over the lengths."""
    score = sum(1 - far(task, length) for length in LENGTHS) / len(LENGTHS)
    assert (score > 0.8) == (task in NEAR) and (score > 0.8 or score < 0.5)


def test_the_page_says_how_far() -> None:
    text = DOCS.read_text()
    for task in ASKED:
        cells = " | ".join(f"{far(task, length):.0%}".replace("%", " %") for length in LENGTHS)
        assert f"| {task} | {cells} |" in text, f"| {task} | {cells} |"
    again = " | ".join(f"{guessed(length):.0%}".replace("%", " %") for length in LENGTHS)
    assert f"| sort, the last answer again is right | {again} |" in text, again


def guessed(length: int) -> float:
    """Return how often saying the last letter again is right, by chance's own account."""
    each = drawn("sort", length)
    n = [sum(map(len, one.answers)) for one in each]
    return sum(chance(one) * of for one, of in zip(each, n, strict=True)) / sum(n)
