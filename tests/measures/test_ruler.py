"""Tasks in the manner of RULER: what their prompts hold, that an answer follows from the prompt, lengths, scores."""

import random
import re
from collections import Counter

import pytest

from coca_train.data.prompts import EVERYDAY
from coca_train.data.ruler import ADJECTIVES, NOISE, NOUNS, TASKS, hidden
from coca_train.evaluation.suites.ruler import cases, score


def solve_needles(prompt):
    pairs = re.findall(r"The special (?:number|word) of (\w+ \w+) is (\w+)\.", prompt)
    question = prompt.split("Question:")[1].split("?")[0]
    return {value for key, value in pairs if key in question}


def solve_variables(prompt):
    number, value = re.search(r"have the value (\d+)\?", prompt)[1], {}
    for name, source in re.findall(r"^VAR (\w+) = (?:VAR )?(\w+)$", prompt, re.MULTILINE):
        value[name] = value.get(source, source)
    return {name for name, it in value.items() if it == number}


def solve_common(prompt):
    asked = prompt.rpartition("Below is")[2]
    return {word for word, _ in Counter(re.findall(r"\d+\. (\w+)", asked)).most_common(10)}


def solve_frequent(prompt):
    (noise, *asked), _ = zip(*Counter(prompt.splitlines()[1].split()).most_common(4), strict=True)
    assert noise == "..."
    return set(asked)


NEEDLES = ["needle", "needle_keys", "needle_values", "needle_queries"]
WORDS = ["word", "word_keys", "word_values", "word_queries"]
SOLVERS = dict.fromkeys([*NEEDLES, *WORDS], solve_needles) | {
    "variables": solve_variables,
    "common_words": solve_common,
    "frequent_words": solve_frequent,
}


def test_needles_are_everywhere_alike():
    n, places = 3000, Counter()
    for seed in range(n):
        places[hidden(["a"], 4, ["x"], [random.Random(seed).random()]).splitlines().index("x")] += 1
    assert sorted(places) == [0, 1, 2, 3, 4]
    assert all(abs(count - n / 5) < 100 for count in places.values())  # 4.5 standard deviations


def encode(text):
    return text.split(" ")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [2500, 6000])
def test_prompts_fill_their_length(name, length):
    haystack = [f"{'many words ' * (7 * i % 23)}end." for i in range(400)]
    prompts = cases(TASKS[name], encode, length, 3, haystack=haystack, seed=1, begin=("<s>",))
    for prompt in prompts:
        assert prompt.tokens[0] == "<s>"
        assert 0.99 * length <= len(prompt.tokens) <= length
        assert set(prompt.expected) == SOLVERS[name](" ".join(prompt.tokens[1:]))
    assert len({prompt.tokens for prompt in prompts}) == 3
    assert cases(TASKS[name], encode, length, 2, haystack=haystack, seed=1, begin=("<s>",)) == prompts[:2]
    others = cases(TASKS[name], encode, length, 1, haystack=haystack, seed=2) + cases(
        TASKS[name], encode, length + 1, 1, haystack=haystack, seed=1)  # fmt: skip
    assert all(prompt.expected != prompts[0].expected for prompt in others)


def test_one_unit_more_would_be_too_long():
    for length in (57, 100, 1000):
        prompts = cases(TASKS["needle"], lambda text: list(text.encode()), 400 + length, 1, haystack=NOISE, seed=0)
        assert 400 + length - len(NOISE[0]) - 1 < len(prompts[0].tokens) <= 400 + length


@pytest.mark.parametrize("name", TASKS)
def test_no_room(name):
    sample = TASKS[name].of_length(100)(TASKS[name].least, random.Random(0), NOISE)
    n = len(encode(sample.prompt))
    assert cases(TASKS[name], encode, n - 1, 1, haystack=NOISE, seed=0) == []
    assert len(cases(TASKS[name], encode, n, 1, haystack=NOISE, seed=0)) == 1


def test_a_length_counts_the_answer_too():
    """As RULER counts it: new tokens and prompt together fill it."""
    task = TASKS["needle"]
    (inside,) = cases(task, encode, 2500, 1, haystack=NOISE, seed=1, answer_inside=True)
    assert 0.99 * (2500 - 128) <= len(inside.tokens) <= 2500 - 128


def test_lists_below_4096_tokens_repeat_words_less_often():
    for length, often, seldom, solved in ((4095, 6, 1, (3, 1)), (4096, 30, 3, (10, 3))):
        prompt = TASKS["common_words"].of_length(length)(40, random.Random(0), NOISE).prompt
        example, asked = prompt.split("\nBelow is")
        for text, times in ((example, solved), (asked, (often, seldom))):
            listed = text.split("Question:")[0]
            assert set(Counter(re.findall(r"\d+\. (\w+)", listed)).values()) == set(times)
        assert re.findall(r"\d+\. ", example.split("Answer:")[1]) == [f"{n}. " for n in range(1, 11)]


@pytest.mark.parametrize(
    ("answer", "share"),
    [("1234567, 7654321", 1.0), (" 7654321.", 0.5), ("", 0.0), ("91234567", 0.5), ("12 34567", 0.0)],
)
def test_score(answer, share):
    assert score(("1234567", "7654321"), answer) == share


def test_case_does_not_matter():
    assert score(("ABCDE", "bamilo"), "abcde BAMILO") == 1.0


def test_no_everyday_word_stands_in_another_or_beside_one():
    beside = [TASKS[name].build(3, random.Random(seed), NOISE).prompt for name in WORDS for seed in "abc"]
    beside = [re.sub(r"(?<= is )[a-z]+(?=\.\n)", "", text) for text in beside]
    others = {word for text in [*beside, *NOISE, *ADJECTIVES, *NOUNS] for word in re.findall("[a-z]+", text.lower())}
    assert not [(one, other) for one in EVERYDAY for other in {*EVERYDAY, *others} - {one} if one in other]
    assert len(set(EVERYDAY)) == len(EVERYDAY) > 300 and others.isdisjoint(EVERYDAY)
