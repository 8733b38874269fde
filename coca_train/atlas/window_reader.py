"""A reader of the last tokens: what a model has right that uses nothing farther back, and that fully.

It gives every answer that follows from symbols within the window, and guesses the others. A model that has no more
right than it at some length does not show that it reads farther than it was trained to.
"""

from collections.abc import Iterator, Sequence
from functools import cache

from coca_train.data.diagnostics import BAR, BRACKETS, WRITE, Example, chance, examples

N_CASES, SEED = 50, 0  # examples that it is asked: those of an evaluation


def needed(example: Example) -> Iterator[tuple[int, int]]:
    """Yield of each answer its place and that of the farthest symbol that it needs."""
    for at in example.answers:
        for number, place in enumerate(at):
            yield place, _farthest(example.task, example.symbols, at.start - 1, number)


def _farthest(task: str, symbols: Sequence[str], ask: int, number: int) -> int:
    """Return the place of the farthest symbol that an answer needs. ask: the place of the sign before the answers.
    number: of the answer after it."""
    bar = symbols.index(BAR) if BAR in symbols else 0
    word = symbols[ask - 1]
    match task:
        case "copy":
            return 1 + number
        case "reverse":
            return ask - 1 - number
        case "nearest":
            return 1 + max(at for at in range(1, bar - 1) if symbols[at] == word)
        case "first":
            return 1 + min(at for at in range(1, bar - 1) if symbols[at] == word)
        case "recall":
            return 1 + max(at for at in range(1, bar, 2) if symbols[at] == word)
        case "tags":
            return 2 + max(at for at in range(1, bar, 3) if symbols[at : at + 2] == symbols[ask - 2 : ask])
        case "after":
            return symbols.index(symbols[ask - 2])
        case "left":
            return int(word)
        case "right":
            return bar - int(word)
        case "running":  # the sum before
            return max(1, ask - 3)
        case "flip_flop":
            return 1 + max(at for at in range(1, ask) if symbols[at] == WRITE)
        case "brackets":
            opened: list[int] = []
            for at in range(1, ask):
                opened = [*opened, at] if symbols[at] in BRACKETS else opened[:-1]
            return opened[-1 - number]
    return 1  # everything: all letters, shots, bits


@cache
def share(task: str, length: int, window: int) -> float:
    """Return the share of answers that it has right in texts of a length. window: of the last tokens that it sees."""
    right, n = 0.0, 0
    for each in examples(task, length, "test", SEED, N_CASES):
        guess, distances = chance(each), [place - need for place, need in needed(each)]
        right += sum(1.0 if distance <= window else guess for distance in distances)
        n += len(distances)
    return right / n


def score(task: str, lengths: Sequence[int], chances: Sequence[float], window: int) -> float:
    """Return its score, as of a trial: the mean over lengths of the share, of what guessing leaves. chances: by
    length."""
    each = [(share(task, at, window) - guess) / (1 - guess) for at, guess in zip(lengths, chances, strict=True)]
    return sum(each) / len(each)
