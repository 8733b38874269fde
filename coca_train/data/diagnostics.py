"""Diagnostics: short tasks with exact answers, of any length, that show what a model can do with its context.

An example is a row of symbols, each a token of its own. Answers stand between `=` and `;`, and only they are trained on
and scored (`data.answers`):

    recall din kon ban lun lin don | ban = lun ; din = kon ;

Everything is drawn from a generator that is passed in, so (task, length, seed, number) say it all. A digest of the text
puts an example into one split, so no example is in two of them.
"""

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

Split = Literal["train", "valid", "test"]
Symbols = list[str]

ASK, STOP, BAR = "=", ";", "|"
DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
WORDS = tuple(map("".join, product("bdkl", "aiou", "n")))
BRACKETS = {"(": ")", "[": "]", "{": "}"}
TAGS, LABELS = ("old", "new"), ("yes", "no")
WRITE, SKIP, READ = "write", "skip", "read"
MODULUS, DEEPEST, FARTHEST = 5, 8, 9
NINE = 3  # one in so many digits of a sum is 9, by how numbers are drawn
MOST_QUESTIONS, QUESTION_EVERY, FACT_EVERY = 8, 9, 11  # of an example; one in so many symbols; one of tags
SPLITS: tuple[Split, ...] = ("train",) * 8 + ("valid", "test")  # by the last digit of an example's digest


class Task(NamedTuple):
    """A diagnostic. build: an example of at most so many symbols, its name not included, by a generator. solve: the
    answer to every question, from the symbols before it alone; what a perfect model says. n_guesses: how many answers
    are possible as far as the symbols before a question tell, for the chance level. in_runs: whether the same answer
    comes several times in a row, so that saying the last one again is the better guess."""

    meaning: str
    build: Callable[[int, random.Random], Symbols]
    solve: Callable[[Symbols], Symbols]
    n_guesses: Callable[[Symbols], int]
    in_runs: bool = False

    @property
    def guess(self) -> str:
        """What is right as often as by chance."""
        return "saying the last answer again" if self.in_runs else "guessing"


class Example(NamedTuple):
    """One text: its symbols, and which of them are answers, [begin, end) each."""

    task: str
    symbols: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.symbols)

    @property
    def answers(self) -> list[range]:
        """Where the answers are."""
        found, begin = [], 0
        for at, symbol in enumerate(self.symbols):
            if symbol == ASK:
                begin = at + 1
            elif symbol == STOP:
                found.append(range(begin, at))
        return found


def _words(n: int, draw: random.Random, pool: Sequence[str] = WORDS) -> Symbols:
    return draw.choices(pool, k=n)


def _asked(question: Sequence[str], answer: Sequence[str]) -> Symbols:
    return [*question, ASK, *answer, STOP]


def _n_questions(size: int, every: int = QUESTION_EVERY) -> int:
    return max(1, min(MOST_QUESTIONS, size // every))


def _split(symbols: Symbols) -> tuple[Symbols, Symbols]:
    """Return the list before the last question, and that question."""
    bar = symbols.index(BAR)
    last = max((at for at, each in enumerate(symbols) if each == STOP), default=bar)
    return symbols[1:bar], symbols[last + 1 :]


# ---- texts that are said again


def _mapped(change: Callable[[Symbols], Symbols], pool: Sequence[str]) -> Callable[[int, random.Random], Symbols]:
    def build(size: int, draw: random.Random) -> Symbols:
        given = _words(max(1, (size - 2) // 2), draw, pool)
        return [*given, *_asked((), change(given))]

    return build


def _reverse(given: Symbols) -> Symbols:
    return given[::-1]


# ---- what stood next to something


def _last_anywhere(n: int, pool: Symbols, n_asked: int, draw: random.Random) -> tuple[Symbols, Symbols]:
    """Return n words of a pool, and those of them to ask for. Each of these comes last at a place drawn evenly, so
    that as many are far as near at any length. About half of them come earlier too in a short text, nearly all in a
    long one: where all did, models were slow to find anything."""
    asked = draw.sample(pool, min(n_asked, len(pool) - 1, n))
    word_at = dict(zip(draw.sample(range(n), len(asked)), asked, strict=True))
    given, left = Symbols(), list(pool)
    for at in range(n):
        if at in word_at:
            left.remove(word_at[at])
        given.append(word_at.get(at) or draw.choice(left))
    for place, word in word_at.items():
        free = [at for at in range(place) if at not in word_at]
        if free and word not in given[:place] and draw.random() < 0.5:
            given[draw.choice(free)] = word
    return given, asked


def _follows(which: int) -> tuple[Callable[[int, random.Random], Symbols], Callable[[Symbols], Symbols]]:
    """Build and solve: the word after the first (0) or the last (-1) place of another."""

    def after(given: Symbols, word: str) -> str:
        return given[[at for at, each in enumerate(given[:-1]) if each == word][which] + 1]

    def build(size: int, draw: random.Random) -> Symbols:
        n = _n_questions(size)
        pool = draw.sample(WORDS, max(3, min(len(WORDS), size // 2)))
        given, asked = _last_anywhere(max(3, size - 1 - 4 * n) - 1, pool, n, draw)
        end = draw.choice([each for each in pool if each not in asked])
        given = [*(given if which < 0 else reversed(given)), end]  # the last one is followed by a word, too
        return [*given, BAR, *(each for word in asked for each in _asked([word], [after(given, word)]))]

    def solve(symbols: Symbols) -> Symbols:
        given, (word,) = _split(symbols)
        return [after(given, word)]

    return build, solve


def _build_after(size: int, draw: random.Random) -> Symbols:
    n = _n_questions(size)
    length = max(2, size - 1 - 5 * n)
    farthest = min(FARTHEST, length - 1)
    n = min(n, length - farthest)
    anchors = draw.sample(WORDS, n)
    given = _words(length, draw, [each for each in WORDS if each not in anchors])
    places = draw.sample(range(length - farthest), n)
    for anchor, place in zip(anchors, places, strict=True):
        given[place] = anchor
    asked = Symbols()
    for anchor, place in zip(anchors, places, strict=True):
        distance = draw.randint(1, farthest)
        asked += _asked([anchor, str(distance)], [given[place + distance]])
    return [*given, BAR, *asked]


def _solve_after(symbols: Symbols) -> Symbols:
    given, (anchor, distance) = _split(symbols)
    return [given[given.index(anchor) + int(distance)]]


# ---- pairs


def _build_recall(size: int, draw: random.Random) -> Symbols:
    n = _n_questions(size)
    n_pairs = max(1, (size - 1 - 4 * n) // 2)
    # As many keys as pairs, until words come to an end.
    pool = draw.sample(WORDS, max(2, min(len(WORDS), n_pairs)))
    keys, asked = _last_anywhere(n_pairs, pool, n, draw)
    values = _words(n_pairs, draw)
    pairs = [each for pair in zip(keys, values, strict=True) for each in pair]
    last = dict(zip(keys, values, strict=True))
    return [*pairs, BAR, *(each for key in asked for each in _asked([key], [last[key]]))]


def _solve_recall(symbols: Symbols) -> Symbols:
    given, (key,) = _split(symbols)
    return [dict(zip(given[::2], given[1::2], strict=True))[key]]


def _build_tags(size: int, draw: random.Random) -> Symbols:
    n = _n_questions(size, FACT_EVERY)
    n_facts = max(1, (size - 1 - 5 * n) // 3)
    # A key is given twice under a tag on average, at any length until words come to an end.
    keys = draw.sample(WORDS, max(1, min(len(WORDS), n_facts // (2 * len(TAGS)))))
    tagged, asked = _last_anywhere(n_facts, [f"{tag} {key}" for tag, key in product(TAGS, keys)], n, draw)
    facts = [(*each.split(), draw.choice(WORDS)) for each in tagged]
    last = {(tag, key): value for tag, key, value in facts}
    given = [each for fact in facts for each in fact]
    questions = [each.split() for each in asked]
    return [*given, BAR, *(each for tag, key in questions for each in _asked([tag, key], [last[tag, key]]))]


def _solve_tags(symbols: Symbols) -> Symbols:
    given, question = _split(symbols)
    facts = {(tag, key): value for tag, key, value in zip(*(given[at::3] for at in range(3)), strict=True)}
    tag, key = question
    return [facts[tag, key]]


def _build_vote(size: int, draw: random.Random) -> Symbols:
    words = draw.sample(WORDS, max(1, min(4, size // 10)))
    n_each = max(1, (size - 1 - 4 * len(words)) // (2 * len(words)))
    labels = {word: draw.choice(LABELS) for word in words}
    # A quarter of the shots are wrong; those that tip the balance or make it even are put right.
    shots = [[word, labels[word] if draw.random() < 0.75 else _other(labels[word])] for word in words * n_each]
    for word in words:
        wrong = [shot for shot in shots if shot[0] == word and shot[1] != labels[word]]
        for shot in wrong[(n_each - 1) // 2 :]:
            shot[1] = labels[word]
    draw.shuffle(shots)
    given = [each for shot in shots for each in shot]
    return [*given, BAR, *(each for word in words for each in _asked([word], [labels[word]]))]


def _other(label: str) -> str:
    return LABELS[1 - LABELS.index(label)]


def _solve_vote(symbols: Symbols) -> Symbols:
    given, (word,) = _split(symbols)
    shots = zip(given[::2], given[1::2], strict=True)
    return [Counter(label for each, label in shots if each == word).most_common(1)[0][0]]


# ---- places


def _placed(sign: int) -> tuple[Callable[[int, random.Random], Symbols], Callable[[Symbols], Symbols]]:
    """Build and solve: the word at a place, counted from the left (1) or from the right (-1)."""

    def at(given: Symbols, place: str) -> str:
        return given[int(place) - 1 if sign > 0 else -int(place)]

    def build(size: int, draw: random.Random) -> Symbols:
        n = _n_questions(size)
        given = _words(max(1, size - 1 - 4 * n), draw)
        places = draw.sample(DIGITS[1 : min(FARTHEST, len(given)) + 1], min(n, len(given), FARTHEST))
        return [*given, BAR, *(each for place in places for each in _asked([place], [at(given, place)]))]

    def solve(symbols: Symbols) -> Symbols:
        given, (place,) = _split(symbols)
        return [at(given, place)]

    return build, solve


# ---- arithmetic and states


def _build_add(size: int, draw: random.Random) -> Symbols:
    n = max(1, (size - 4) // 3)
    one = [draw.randrange(10) for _ in range(n)]
    # Half of the digits make nine with the other's, so that what is carried is carried far.
    other = [9 - digit if draw.random() < 0.5 else draw.randrange(10) for digit in one]
    return [*map(str, one), "+", *map(str, other), *_asked((), _added(one, other))]


def _added(one: Sequence[int], other: Sequence[int]) -> Symbols:
    total, carried = Symbols(), 0
    for a, b in zip(one, other, strict=True):
        carried, digit = divmod(a + b + carried, 10)
        total.append(str(digit))
    return [*total, str(carried)]


def _solve_add(symbols: Symbols) -> Symbols:
    plus = symbols.index("+")
    one, other = (int("".join(reversed(each))) for each in (symbols[1:plus], symbols[plus + 1 :]))
    return list(reversed(str(one + other).zfill(plus)))


def _build_parity(size: int, draw: random.Random) -> Symbols:
    bits = [draw.choice("01") for _ in range(max(1, size - 3))]
    return [*bits, *_asked((), [str(bits.count("1") % 2)])]


def _solve_parity(symbols: Symbols) -> Symbols:
    return [str(sum(map(int, symbols[1:])) % 2)]


def _build_running(size: int, draw: random.Random) -> Symbols:
    given, state = Symbols(), 0
    for _ in range(max(1, size // 4)):
        step = draw.randrange(MODULUS)
        state = (state + step) % MODULUS
        given += _asked([str(step)], [str(state)])
    return given


def _solve_running(symbols: Symbols) -> Symbols:
    steps = [symbols[-1], *(symbols[at - 1] for at, each in enumerate(symbols) if each == ASK)]
    return [str(sum(map(int, steps)) % MODULUS)]


def _build_flip_flop(size: int, draw: random.Random) -> Symbols:
    n = max(1, (size - 4) // 2)
    writes = {0, *draw.sample(range(n), min(3, n))}  # as many whatever the length, so the last one is long ago
    given, bit = Symbols(), ""
    for number in range(n):
        drawn = draw.choice("01")
        bit = drawn if number in writes else bit
        given += [WRITE if number in writes else SKIP, drawn]
    return [*given, *_asked([READ], [bit])]


def _solve_flip_flop(symbols: Symbols) -> Symbols:
    return [symbols[max(at for at, each in enumerate(symbols) if each == WRITE) + 1]]


def _build_brackets(size: int, draw: random.Random) -> Symbols:
    n, opened, given = max(1, size - 2 - DEEPEST), Symbols(), Symbols()
    while len(given) < n:
        if not opened or (len(opened) < DEEPEST and draw.random() < 0.5):
            opened.append(draw.choice(list(BRACKETS)))
            given.append(opened[-1])
        else:
            given.append(BRACKETS[opened.pop()])
    if not opened:
        opened.append(draw.choice(list(BRACKETS)))
        given.append(opened[-1])
    return [*given, *_asked((), [BRACKETS[each] for each in reversed(opened)])]


def _solve_brackets(symbols: Symbols) -> Symbols:
    text = "".join(symbols[1:])
    while (less := text.replace("()", "").replace("[]", "").replace("{}", "")) != text:
        text = less
    return [BRACKETS[each] for each in reversed(text)]


def _always(n: int) -> Callable[[Symbols], int]:
    return lambda symbols: n


def _listed(symbols: Symbols) -> int:
    return len(set(_split(symbols)[0]))


def _values(symbols: Symbols) -> int:
    return len(set(_split(symbols)[0][1::2]))


def _tagged(symbols: Symbols) -> int:
    return len(set(_split(symbols)[0][2::3]))


TASKS: dict[str, Task] = {
    "copy": Task("Say the words again.", _mapped(list, WORDS), lambda s: s[1:], _always(len(WORDS))),
    "reverse": Task(
        "Say the words again from the last one to the first.", _mapped(_reverse, WORDS), lambda s: s[:0:-1],
        _always(len(WORDS)),
    ),
    "sort": Task(
        "Say the letters again in the order of the alphabet.", _mapped(sorted, LETTERS), lambda s: sorted(s[1:]),
        _always(len(LETTERS)), in_runs=True,
    ),
    "nearest": Task("Say what followed a word where it stood last (induction).", *_follows(-1), _listed),
    "first": Task("Say what followed a word where it stood first.", *_follows(0), _listed),
    "after": Task("Say the word a given number of places after another.", _build_after, _solve_after, _listed),
    "recall": Task(
        "Say the value that a key was given last (associative recall).", _build_recall, _solve_recall, _values
    ),
    "tags": Task(
        "Say the value that a key was given last under one of two tags.",
        _build_tags, _solve_tags, _tagged,
    ),
    "vote": Task(
        "Say the label that most shots give a word, when a quarter of them are wrong.", _build_vote, _solve_vote,
        _always(len(LABELS)),
    ),
    "left": Task("Say the word at a place counted from the left.", *_placed(1), _listed),
    "right": Task("Say the word at a place counted from the right.", *_placed(-1), _listed),
    "add": Task("Add two numbers, the digits of the ones first.", _build_add, _solve_add, _always(NINE)),
    "parity": Task("Say whether the number of ones is odd.", _build_parity, _solve_parity, _always(2)),
    "running": Task(
        f"Say the sum so far modulo {MODULUS} after every number, the sum before being given.",
        _build_running, _solve_running, _always(MODULUS),
    ),
    "flip_flop": Task(
        "Say the bit that was written last, however long ago.", _build_flip_flop, _solve_flip_flop, _always(2)
    ),
    "brackets": Task("Close what is still open.", _build_brackets, _solve_brackets, _always(len(BRACKETS))),
}  # fmt: skip
LEAST = 16  # symbols of the shortest example


def vocabulary() -> tuple[str, ...]:
    """Return every symbol that an example can have."""
    signs = (ASK, STOP, BAR, "+", WRITE, SKIP, READ, *TAGS, *LABELS, *BRACKETS, *BRACKETS.values())
    return (*TASKS, *signs, *DIGITS, *LETTERS, *WORDS)


def split_of(example: Example) -> Split:
    """Return the split that an example is in."""
    return SPLITS[zlib.crc32(example.text.encode()) % len(SPLITS)]


def example(task: str, length: int, split: Split, draw: random.Random) -> Example:
    """Draw an example of a split, of at most `length` symbols (at least LEAST)."""
    assert length >= LEAST, length
    while True:
        drawn = Example(task, (task, *TASKS[task].build(length - 1, draw)))
        if split_of(drawn) == split:
            return drawn


def examples(task: str, length: int, split: Split, seed: int, n: int) -> Iterator[Example]:
    """Yield n examples of one length, always the same."""
    for number in range(n):
        yield example(task, length, split, random.Random(f"{task} {length} {split} {seed} {number}"))


def solved(drawn: Example) -> bool:
    """Return whether the solver gives every answer of an example."""
    solve = TASKS[drawn.task].solve
    symbols = list(drawn.symbols)
    return all(solve(symbols[: at.start - 1]) == symbols[at.start : at.stop] for at in drawn.answers)


def chance(drawn: Example) -> float:
    """Return the expected share of answers that guessing among the possible ones gets right; where answers come in
    runs, that saying the answer before again gets right."""
    task, symbols, answers = TASKS[drawn.task], drawn.symbols, drawn.answers
    right = 0.0
    for at in answers:
        guess = 1 / task.n_guesses(list(symbols[: at.start - 1]))
        again = sum(symbols[place] == symbols[place - 1] for place in at[1:])
        right += guess + again if task.in_runs else guess * len(at)
    return right / sum(map(len, answers))
