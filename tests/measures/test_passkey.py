"""The passkey prompt against the listing of the CoCA paper, its length, places, distances and scoring."""

import pytest

from coca_train.data.prompts import COCA, YARN
from coca_train.evaluation.suites.passkey import answered, cases

LISTING = """\
There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about \
the important information there.
The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
The passkey is 12345. Remember it. 12345 is the passkey.
The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
What is the passkey?"""


def encode(text):
    """A token a character."""
    return [ord(letter) for letter in text]


def text(case, begin=0):
    return "".join(map(chr, case.tokens[begin:]))


def make(length, n_cases=8, **options):
    settings = {"places": "uniform", "n_depths": 5, "seed": 0} | options
    return cases(encode, length, n_cases, **settings)


def test_the_prompt_is_that_of_the_listing():
    assert COCA.prompt(12345, 1, 2) == LISTING


GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def theirs(key: int, n_prefix: int, n_suffix: int) -> str:
    """As YaRN's authors write it (eval/passkey.py): so many characters of filler on either side."""
    garbage = " ".join([GARBAGE] * 20)
    parts = [
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
        "about the important information there.",
        garbage[:n_prefix],
        f"The pass key is {key}. Remember it. {key} is the pass key.",
        garbage[:n_suffix],
        "What is the pass key? The pass key is",
    ]
    return "\n".join(parts)


@pytest.mark.parametrize(("n_before", "n_after"), [(0, 0), (0, 2), (3, 0), (2, 5)])
def test_yarns_prompt_is_its_authors_with_whole_fillers(n_before, n_after):
    characters = [max(0, n * (len(GARBAGE) + 1) - 1) for n in (n_before, n_after)]
    assert YARN.prompt(777, n_before, n_after) == theirs(777, *characters)
    assert YARN.prompt(777, n_before, n_after).startswith(YARN.before_key(n_before) + "The pass key is 777.")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (" 777.", True), (" 0777", True), ("777, and 5", True), (" 5, then 777", False), (" 7771", False),
        ("unknown", False), ("", False),
    ],
)  # fmt: skip
def test_yarns_answer_is_its_first_number(answer, right):
    assert answered(777, answer, YARN) is right


FIXED, FILLER = len(COCA.prompt(12345, 0, 0)), len(LISTING.splitlines()[1]) + 1


def test_a_length_without_room_has_no_prompts():
    assert make(FIXED - 1) == []
    assert make(FIXED, begin=(7,)) == []
    assert make(FIXED + 1, begin=(7,))[0].tokens[:2] == (7, ord("T"))


def test_a_tokenizer_for_which_some_keys_are_longer():
    """Keys that begin with a 1 take a token more each time: such prompts are shorter by a filler, never too long."""

    def longer(text):
        return [
            token for word in text.split(" ") for token in ([0, 0] if word[:5].isdigit() and word[0] == "1" else [0])
        ]

    n_words = len(COCA.prompt(12345, 0, 1).split(" ")) + 1
    lengths = {case.key // 10_000: len(case.tokens) for case in cases(
        longer, n_words, 40, places="uniform", n_depths=5, seed=0)}  # fmt: skip
    assert all(n <= n_words for n in lengths.values())
    assert lengths[1] != lengths[2]


def test_uniform_places_are_uniform_and_even_ones_are_on_the_grid():
    n = 3000
    uniform = make(FIXED + 4 * FILLER, n_cases=n)
    counts = [sum(case.depth == depth for case in uniform) for depth in (0, 0.25, 0.5, 0.75, 1)]
    assert sum(counts) == n
    assert all(abs(count - n / 5) < 100 for count in counts)  # 4.5 standard deviations
    even = make(FIXED + 9 * FILLER, n_cases=10, places="even")
    assert [case.depth for case in even[:5]] == [0, 2 / 9, 4 / 9, 7 / 9, 1]  # 0, 2.25, 4.5, 6.75 and 9 fillers of 9
    assert [case.depth for case in even[5:]] == [case.depth for case in even[:5]]
    assert len({case.key for case in uniform}) > 0.97 * n


def test_the_distance_is_from_the_sentence_to_the_end():
    for case in make(FIXED + 7 * FILLER, begin=(1, 2)):
        assert text(case, 2)[-case.distance :].startswith(f"The passkey is {case.key}.")


def test_a_case_depends_on_seed_length_and_number_only():
    length = FIXED + 7 * FILLER
    few, many = make(length, n_cases=3), make(length, n_cases=9)
    assert many[:3] == few
    others = [make(length, n_cases=9, seed=1), make(length + FILLER, n_cases=9)]
    assert all(a.key != b.key for other in others for a, b in zip(many, other, strict=True))


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        ("\nThe passkey is 12345.\n", True), ("12345", True), ("key12345key", True), ("123456", False),
        ("012345", False), ("123456 12345", True), ("12 345", False), ("", False), ("٣12345", True),
    ],
)  # fmt: skip
def test_found_as_a_whole_number(answer, whole):
    assert answered(12345, answer) is whole
