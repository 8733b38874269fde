"""The words of tasks in the manner of RULER (Hsieh et al., arXiv 2404.06654): retrieval, tracing and counting.

The texts are our own, and the haystacks are those that are given. Numbers (four keys, four values, four hops, 30
against 3 repeats, exponent 2, the noise among frequent words, the solved list before a list) and new tokens are
RULER's defaults (github.com/NVIDIA/RULER, scripts/data/synthetic). A prompt is built around a haystack of `size` units
(sentences, words). docs/evaluation.md lists what is not RULER's.
"""

import math
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from coca_train.data.prompts import EVERYDAY, FILLER, words


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt and the strings its answer should contain."""

    prompt: str
    expected: tuple[str, ...]


Build = Callable[[int, random.Random, Sequence[str]], Sample]
SHORT = 4096  # below this length lists of words repeat them less often [tokens]


@dataclass(frozen=True)
class Task:
    """build(size, draw, haystack): the prompt with `size` units; haystack: sentences, taken from the first one on and
    over again. short: the same for lengths below SHORT, None: there is no other. least: smallest size. max_new_tokens:
    length of an answer [tokens]."""

    name: str
    about: str
    build: Build
    max_new_tokens: int
    least: int = 0
    short: Build | None = None

    def of_length(self, length: int) -> Build:
        """Return how a prompt of this length [tokens] is built."""
        return self.short if self.short is not None and length < SHORT else self.build


NOISE = (FILLER,)  # the passkey's filler, one unit


def hidden(haystack: Sequence[str], size: int, needles: Sequence[str], depths: Sequence[float]) -> str:
    """The first `size` sentences of the haystack with the needles between them, a line each. A needle's depth in
    [0, 1) says which of the size + 1 gaps it has: of depths drawn uniformly, all are equally likely."""
    lines = [(2 * index + 1, haystack[index % len(haystack)]) for index in range(size)]
    lines += [(2 * int(depth * (size + 1)), needle) for depth, needle in zip(depths, needles, strict=True)]
    return "\n".join(line for _, line in sorted(lines, key=lambda pair: pair[0]))


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


SEVEN_DIGITS = range(1_000_000, 10_000_000)


def needles(
    kind: Literal["number", "word"],
    n_keys: int,
    n_values: int,
    n_asked: int,
    size: int,
    draw: random.Random,
    haystack: Sequence[str],
    depths: Sequence[float] = (),
) -> Sample:
    """Numbers or words of named things, hidden in text (RULER, section 3: NIAH); the haystack's unit is a sentence.

    A needle is the line "The special number of KEY is VALUE."; KEY an adjective and a noun, VALUE of seven digits or,
    with kind=word, a common noun; both drawn for each case, all different. There are n_keys keys with n_values
    values each; the values of the first n_asked keys are asked for, and expected. depths: of the needles (`hidden`);
    (): drawn.
    """
    pairs = draw.sample([f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS], n_keys)
    values = draw.sample(SEVEN_DIGITS if kind == "number" else EVERYDAY, n_keys * n_values)
    hidden_pairs = [
        (key, str(values[place * n_values + turn])) for place, key in enumerate(pairs) for turn in range(n_values)
    ]
    lines = [f"The special {kind} of {key} is {value}." for key, value in hidden_pairs]
    depths = depths or [draw.random() for _ in lines]
    queried = pairs[:n_asked]
    names = queried[0] if len(queried) == 1 else f"{', '.join(queried[:-1])} and {queried[-1]}"
    one = n_values * n_asked == 1
    what = f"the special {kind} of {names}" if one else f"all the special {kind}s of {names}"
    return Sample(
        prompt=(
            f"Special {kind}s are hidden in the text below. Remember them: you will be asked for them at the end.\n"
            f"{hidden(haystack, size, lines, depths)}\n"
            f"Question: what {'is' if one else 'are'} {what}?\n"
            f"Answer: {what} {'is' if one else 'are'}"
        ),
        expected=tuple(value for key, value in hidden_pairs if key in queried),
    )


HOPS, LETTERS = 4, 5


def variables(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    """A chain of assignments hidden in text (RULER, section 3: multi-hop tracing).

    It is "VAR A = 12345", "VAR B = VAR A", ... over HOPS hops, hidden in this order; names are LETTERS capital letters,
    the number has five digits. Asked for are all variables with that number; expected are their names.
    """
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(draw.choices(string.ascii_uppercase, k=LETTERS))] = None
    chain, number = list(names), draw.randint(10_000, 99_999)
    lines = [f"VAR {chain[0]} = {number}", *(f"VAR {later} = VAR {former}" for former, later in pairwise(chain))]
    depths = sorted(draw.random() for _ in lines)
    return Sample(
        prompt=(
            "Assignments of variables are hidden in the text below. Follow them: you will be asked for a value.\n"
            f"{hidden(haystack, size, lines, depths)}\n"
            f"Question: which variables have the value {number}?\n"
            f"Answer: the {len(chain)} variables with the value {number} are"
        ),
        expected=tuple(chain),
    )


COMMON = 10
FREQUENT, EXPONENT, ZETA = 3, 2, math.pi**2 / 6
DOTS = "..."  # the most frequent word, which is noise


def _common(n_others: int, often: int, seldom: int, draw: random.Random) -> Sample:
    """A list of COMMON made-up words `often` times each and others `seldom` times each, shuffled and numbered; the
    common ones are asked for, and expected."""
    known = words(COMMON + n_others, draw)
    common, others = known[:COMMON], known[COMMON:]
    listed = common * often + others * seldom
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


def common_words(
    repeats: tuple[int, int], example: tuple[int, int, int], size: int, draw: random.Random, haystack: Sequence[str]
) -> Sample:
    """Which words come most often (RULER, section 3: CWE), after a solved list; there is no haystack.

    repeats: of the common words and of the `size` others. example: how many others the solved list has, and its
    repeats.
    """
    solved = _common(*example, draw)
    answer = " ".join(f"{number}. {word}" for number, word in enumerate(solved.expected, start=1))
    asked = _common(size, *repeats, draw)
    return Sample(prompt=f"{solved.prompt} {answer}\n{asked.prompt}", expected=asked.expected)


def counts(size: int) -> list[int]:
    """Return how often the words of rank 1, 2, ... occur."""
    n_ranks = math.isqrt(math.floor(size / ZETA))
    return [math.floor(size / (ZETA * rank**EXPONENT)) for rank in range(1, n_ranks + 1)]


def frequent_words(size: int, draw: random.Random, haystack: Sequence[str]) -> Sample:
    """Which words come most often (RULER, section 3: FWE); there is no haystack.

    Of `size` words, the word of rank k comes floor(size · k^-2 / ζ(2)) times, as long as that is one or more; all are
    shuffled. The first one is DOTS, noise that is to be ignored; the others are made up. Ranks 2 to 4 are asked for,
    and expected. From 53 words on they are more frequent than the fifth.
    """
    times = counts(size)
    known = [DOTS, *words(len(times) - 1, draw)]
    text = [word for word, n in zip(known, times, strict=True) for _ in range(n)]
    draw.shuffle(text)
    return Sample(
        prompt=(
            "Below is a text in an unknown language; some of its words are frequent.\n"
            f"{' '.join(text)}\n"
            f"Question: the dots are to be ignored; which {FREQUENT} words are the most frequent?\n"
            f"Answer: the {FREQUENT} most frequent words are"
        ),
        expected=tuple(known[1 : 1 + FREQUENT]),
    )


_needle, _word = partial(partial, needles, "number"), partial(partial, needles, "word")
_EVERY = (
    Task("needle", "one hidden number", _needle(1, 1, 1), max_new_tokens=128),
    Task("needle_keys", "one of four hidden numbers", _needle(4, 1, 1), max_new_tokens=128),
    Task("needle_values", "four hidden numbers under one name", _needle(1, 4, 1), max_new_tokens=128),
    Task("needle_queries", "four hidden numbers under four names", _needle(4, 1, 4), max_new_tokens=128),
    Task("word", "one hidden word", _word(1, 1, 1), max_new_tokens=32),
    Task("word_keys", "one of four hidden words", _word(4, 1, 1), max_new_tokens=32),
    Task("word_values", "four hidden words under one name", _word(1, 4, 1), max_new_tokens=64),
    Task("word_queries", "four hidden words under four names", _word(4, 1, 4), max_new_tokens=64),
    Task("variables", "a chain of assignments", variables, max_new_tokens=30),
    Task(
        "common_words",
        "the ten commonest words of a list, after a solved one",
        partial(common_words, (30, 3), (30, 10, 3)),
        max_new_tokens=120,
        short=partial(common_words, (6, 1), (10, 3, 1)),
    ),
    Task(
        "frequent_words",
        "the three commonest words of a text whose commonest is noise",
        frequent_words,
        max_new_tokens=50,
        least=53,
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _EVERY}
