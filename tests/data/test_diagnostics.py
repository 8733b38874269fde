"""Diagnostics: exact answers by solvers that read the text alone, splits without a common example, chance levels."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from coca_train.data import diagnostics
from coca_train.data.diagnostics import BAR, LABELS, LETTERS, TASKS, WORDS, Example, chance, example, examples

LENGTHS = (16, 17, 31, 63, 64, 250, 1024)
# Read and answered by hand.
BY_HAND = {
    "copy": "copy tin kor bat = tin kor bat ;",
    "reverse": "reverse tin kor bat = bat kor tin ;",
    "sort": "sort q c z c = c c q z ;",
    "nearest": "nearest tin kor bat tin bat kor kor | tin = bat ; kor = kor ; bat = kor ;",
    "first": "first tin kor bat tin bat kor kor | tin = kor ; kor = bat ; bat = tin ;",
    "after": "after tin kor bat mut lir | kor 2 = mut ; tin 4 = lir ;",
    "recall": "recall tin kor bat mut tin lir | bat = mut ; tin = lir ;",
    "tags": "tags old tin kor new tin bat new mut lir old mut dok | new tin = bat ; old mut = dok ;",
    "vote": "vote tin yes kor no tin no tin yes kor no kor no | kor = no ; tin = yes ;",
    "left": "left tin kor bat | 3 = bat ; 1 = tin ;",
    "right": "right tin kor bat | 3 = tin ; 1 = bat ;",
    "add": "add 5 9 1 + 6 0 3 = 1 0 5 0 ;",  # 195 + 306 = 501
    "parity": "parity 1 0 1 1 = 1 ;",
    "running": "running 3 = 3 ; 4 = 2 ; 0 = 2 ; 3 = 0 ;",
    "flip_flop": "flip_flop write 1 skip 0 write 0 skip 1 skip 1 read = 0 ;",
    "brackets": "brackets ( [ ] { ( ) = } ) ;",
}


def drawn(task: str, length: int, n: int = 20) -> list[Example]:
    return list(examples(task, length, "train", seed=1, n=n))


@pytest.mark.parametrize("task", TASKS)
def test_solvers_give_what_was_answered_by_hand(task):
    assert diagnostics.solved(Example(task, tuple(BY_HAND[task].split())))
    wrong = BY_HAND[task].rsplit(" ", 2)
    assert not diagnostics.solved(Example(task, (*wrong[0].split(), "nin", ";")))


@pytest.mark.parametrize("task", TASKS)
def test_solvers_are_right_at_every_length(task):
    for length in LENGTHS:
        for each in drawn(task, length):
            assert diagnostics.solved(each), each.text
            assert len(each.symbols) <= length
            assert set(each.symbols) <= set(diagnostics.vocabulary())
            assert each.answers


@pytest.mark.parametrize("task", TASKS)
def test_longest_examples_fill_their_length(task):
    """But for keys under two tags, of which there are no more than words."""
    least = 700 if task == "tags" else 1000
    assert all(len(each.symbols) > least for each in drawn(task, 1024))
    assert max(len(each.symbols) for each in drawn(task, 63, 60)) >= 57


def test_the_same_place_gives_the_same_example_and_another_one_another():
    one = [each.text for each in examples("recall", 40, "valid", seed=3, n=5)]
    assert one == [each.text for each in examples("recall", 40, "valid", seed=3, n=9)][:5]
    assert len(set(one)) == 5
    assert one[0] != next(examples("recall", 40, "valid", seed=4, n=1)).text


def test_an_example_is_in_one_split():
    texts = {
        split: {each.text for task in TASKS for each in examples(task, 24, split, 1, 200)}
        for split in ("train", "valid", "test")
    }
    assert not texts["train"] & texts["valid"]
    assert not texts["train"] & texts["test"]
    assert not texts["valid"] & texts["test"]
    counted = Counter(diagnostics.split_of(each) for each in all_draws(2000))
    assert counted["train"] / 2000 == pytest.approx(0.8, abs=0.03)


def all_draws(n: int) -> list[Example]:
    return [Example("copy", ("copy", *TASKS["copy"].build(39, random.Random(number)))) for number in range(n)]


def possible(each: Example, before: list[str]) -> list[str]:
    """What may be the answer as far as the form of the task tells."""
    given = before[1 : before.index(BAR)] if BAR in before else []
    return {
        "copy": list(WORDS), "reverse": list(WORDS), "sort": list(LETTERS), "vote": list(LABELS),
        "recall": sorted(set(given[1::2])), "tags": sorted(set(given[2::3])), "add": ["9"],
        "parity": ["0", "1"], "flip_flop": ["0", "1"], "running": list("01234"), "brackets": list(")]}"),
    }.get(each.task) or sorted(set(given))  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_guessing_is_right_as_often_as_chance_says(task):
    draw, right, expected, n = random.Random(0), 0, 0.0, 0
    for each in drawn(task, 40, 600):
        symbols = list(each.symbols)
        for at in each.answers:
            again = [symbols[place - 1 : place] if task == "sort" and place > at.start else [] for place in at]
            guesses = [draw.choice(one or possible(each, symbols[: at.start - 1])) for one in again]
            right += sum(guess == symbols[place] for guess, place in zip(guesses, at, strict=True))
        asked = sum(map(len, each.answers))
        expected, n = expected + asked * chance(each), n + asked
    share = expected / n
    assert right / n == pytest.approx(share, abs=max(0.02 * (task == "add"), 4 * (share * (1 - share) / n) ** 0.5))


@pytest.mark.parametrize("length", [40, 250])
@pytest.mark.parametrize("task", TASKS)
def test_saying_the_last_answer_again_is_no_better_than_chance(task, length):
    """A rule that reads nothing else. Sorted letters come in runs: it has most of them right."""
    right, n, expected = 0, 0, 0.0
    for each in drawn(task, length, 200):
        places = [place for at in each.answers for place in at]
        pairs = [(each.symbols[one], each.symbols[other]) for one, other in pairwise(places)]
        right, n = right + sum(one == other for one, other in pairs), n + len(pairs)
        expected += chance(each) * len(pairs)
    assert right <= expected + 4 * (0.25 * n) ** 0.5  # four standard deviations, at most


def test_votes_are_never_even():
    for length in (16, 25, 40, 64, 250):
        for each in drawn("vote", length, 50):
            given = list(each.symbols[1 : each.symbols.index(BAR)])
            shots = Counter(zip(given[::2], given[1::2], strict=True))
            assert all(shots[word, "yes"] != shots[word, "no"] for word in given[::2])


def test_carries_go_far():
    """Where digits were drawn alone, a carry would pass on with a chance of one in ten."""
    runs = []
    for each in drawn("add", 250, 40):
        symbols = list(each.symbols)
        plus, ask = symbols.index("+"), symbols.index("=")
        nines = [int(a) + int(b) == 9 for a, b in zip(symbols[1:plus], symbols[plus + 1 : ask], strict=True)]
        runs.append(max(map(len, "".join("9" if each else " " for each in nines).split()), default=0))
    assert sum(runs) / len(runs) > 5


def test_a_bit_was_written_long_ago():
    for each in drawn("flip_flop", 1024):
        assert each.symbols.count("write") <= 4


@pytest.mark.parametrize("task", ["nearest", "first", "recall", "tags"])
def test_what_is_asked_for_comes_anywhere(task):
    """Drawn without care, a word that came at most 100 tokens ago would be asked for at any length."""
    quarters, once, width = Counter[int](), 0, {"recall": 2, "tags": 3}.get(task, 1)
    for each in drawn(task, 1024, 100):
        bar = each.symbols.index(BAR)
        given = [each.symbols[at : at + width] for at in range(1, bar, width)]
        keys = [fact[: max(1, width - 1)] for fact in given]
        keys = keys[:-1] if width == 1 else keys
        for at in each.answers:
            key = each.symbols[at.start - 1 - max(1, width - 1) : at.start - 1]
            place = keys.index(key) if task == "first" else len(keys) - 1 - keys[::-1].index(key)
            quarters[4 * place // len(keys)] += 1
            once += keys.count(key) == 1
    n = quarters.total()
    assert once < 0.1 * n  # most keys were given another value before
    assert all(quarters[quarter] / n == pytest.approx(0.25, abs=4 * (0.1875 / n) ** 0.5) for quarter in range(4))


def test_the_length_has_to_hold_an_example():
    with pytest.raises(AssertionError):
        example("copy", 15, "train", random.Random(0))
