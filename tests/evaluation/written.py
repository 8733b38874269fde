"""Prompts of the suites passkey, recall and ruler, written from their definition (docs/evaluation.md) without the
package's code, a token a letter: what its own are held against."""

import json
import math
import random
import string
from collections import Counter

from coca_train.data.ruler import ADJECTIVES, NOUNS

BEGIN = 1  # stands before every prompt, and counts
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def passkey(name, end, between, key, n_fillers, n_before):
    """The prompt, and how far its end is from the key's sentence."""
    task = (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
        "I will quiz you about the important information there."
    )
    groups = [between.join([FILLER] * n) for n in (n_before, n_fillers - n_before)]
    before, after = (f"{group}\n" if group or between == " " else "" for group in groups)
    rest = f"The {name} is {key}. Remember it. {key} is the {name}.\n{after}{end}"
    return f"{task}\n{before}{rest}", len(rest)


def made_up(draw, n):
    """Different words of three syllables, in the order of their drawing."""
    words = {}
    while len(words) < n:
        words["".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(3))] = None
    return list(words)


def recall(length, index, n_depths):
    """Prompt, right value, all values, distance: of as many pairs as there is room for."""
    # Brackets and the asked key; a line has two words, their marks, a comma and its end.
    n = (length - 1 - len('{\n}\n"bamilo":') + 1) // len('"bamilo": "tufage",\n')
    keys = made_up(random.Random(f"recall keys 0 {length} {index}"), n)
    values = made_up(random.Random(f"recall values 0 {length} {index}"), n)
    asked = round((n - 1) * (index % n_depths) / (n_depths - 1))
    prompt = json.dumps(dict(zip(keys, values, strict=True)), indent=0) + f'\n"{keys[asked]}":'
    return prompt, values[asked], values, len(prompt) - prompt.index(f'"{keys[asked]}"')


def between_lines(size, hidden, draw, in_order):
    """Fillers, and what is hidden before one of them or behind the last."""
    gaps = [int(draw.random() * (size + 1)) for _ in hidden]
    placed = list(zip(sorted(gaps) if in_order else gaps, hidden, strict=True))
    lines = []
    for index in range(size + 1):
        lines += [line for gap, line in placed if gap == index] + [FILLER] * (index < size)
    return "\n".join(lines)


def needles(n_keys, n_values, n_asked):
    def prompt(size, draw):
        names = draw.sample([f"{one} {other}" for one in ADJECTIVES for other in NOUNS], n_keys)
        numbers = draw.sample(range(1_000_000, 10_000_000), n_keys * n_values)
        pairs = [(name, numbers.pop(0)) for name in names for _ in range(n_values)]
        lines = [f"The special number of {name} is {number}." for name, number in pairs]
        text = between_lines(size, lines, draw, in_order=False)
        asked = " and ".join(filter(None, [", ".join(names[: n_asked - 1]), names[n_asked - 1]]))
        single = n_values * n_asked == 1
        what = ("the special number of " if single else "all the special numbers of ") + asked
        verb = "is" if single else "are"
        return (
            "Special numbers are hidden in the text below. Remember them: you will be asked for them at the end.\n"
            f"{text}\nQuestion: what {verb} {what}?\nAnswer: {what} {verb}",
            [str(number) for name, number in pairs if name in names[:n_asked]],
        )

    return prompt


def variables(size, draw):
    names = {}
    while len(names) < 5:
        names["".join(draw.choices(string.ascii_uppercase, k=5))] = None
    chain, number = list(names), draw.randint(10_000, 99_999)
    lines = [
        f"VAR {name} = {value}" for name, value in zip(chain, [number, *(f"VAR {n}" for n in chain)], strict=False)
    ]
    text = between_lines(size, lines, draw, in_order=True)
    return (
        "Assignments of variables are hidden in the text below. Follow them: you will be asked for a value.\n"
        f"{text}\nQuestion: which variables have the value {number}?\n"
        f"Answer: the 5 variables with the value {number} are",
        chain,
    )


def word_list(size, draw, often, seldom):
    known = made_up(draw, 10 + size)
    listed = known[:10] * often + known[10:] * seldom
    draw.shuffle(listed)
    text = " ".join(f"{i + 1}. {word}" for i, word in enumerate(listed))
    expected = known[:10]
    assert set(expected) == {word for word, _ in Counter(listed).most_common(10)}
    return (
        "Below is a numbered list of words; some of them come more often than others.\n"
        f"{text}\nQuestion: which 10 words come most often in the list?\n"
        "Answer: the 10 words that come most often are",
        expected,
    )


def common_words(size, draw):
    """Of fewer than 4,096 tokens: repeated 6 times and once, behind a list of 20 solved words."""
    solved, answer = word_list(10, draw, 3, 1)
    said = " ".join(f"{i + 1}. {word}" for i, word in enumerate(answer))
    asked, expected = word_list(size, draw, 6, 1)
    return f"{solved} {said}\n{asked}", expected


def frequent_words(size, draw):
    times = [int(size / rank**2 * 6 / math.pi**2) for rank in range(1, size)]
    times = [n for n in times if n]
    words = ["...", *made_up(draw, len(times) - 1)]
    listed = [word for word, n in zip(words, times, strict=True) for _ in range(n)]
    draw.shuffle(listed)
    expected = [word for word, _ in Counter(listed).most_common(4)][1:]
    return (
        "Below is a text in an unknown language; some of its words are frequent.\n"
        f"{' '.join(listed)}\nQuestion: the dots are to be ignored; which 3 words are the most frequent?\n"
        "Answer: the 3 most frequent words are",
        expected,
    )


RULER = {  # prompt and what is expected, new tokens, fewest units
    "needle": (needles(1, 1, 1), 128, 0),
    "needle_keys": (needles(4, 1, 1), 128, 0),
    "needle_values": (needles(1, 4, 1), 128, 0),
    "needle_queries": (needles(4, 1, 4), 128, 0),
    "variables": (variables, 30, 0),
    "common_words": (common_words, 120, 0),
    "frequent_words": (frequent_words, 50, 53),
}


def ruler(task, length, index, inside=True):
    """All prompts that fill a length, and what their answers should contain: the longest, and those with 99 % of it.
    inside: whether the length counts the answer."""
    build, n_new, size = RULER[task]
    known, room = [], length - n_new * inside
    while 1 + len((made := build(size, random.Random(f"{task} 0 {length} {index}")))[0]) <= room:
        known, size = [*known, made], size + 1
    return [made for made in known if made is known[-1] or 1 + len(made[0]) >= 0.99 * room]
