"""Tasks in the manner of RULER (Hsieh et al., arXiv 2404.06654) at any length, and what an answer scores.

The tasks are in data/ruler.py, in words of our own, so figures compare between models measured here, not with
those of RULER's own prompts.

Length. A task builds its prompt around a haystack of `size` units (sentences, words), fitted to L tokens (prompts.py);
with answer_inside, as RULER does, to those that the new tokens of its answer leave. A case's draws come from a
generator seeded by (task, seed, L, case).

Score. The share of the expected strings that the generated text contains, upper and lower case taken as equal
(RULER's string match over all references); 1 when all are there.
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coca_train.data.ruler import Task
from coca_train.evaluation.measures.prompts import Encode, filled


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as one model reads it."""

    tokens: tuple[int, ...]
    expected: tuple[str, ...]


def cases(
    task: Task,
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    haystack: Sequence[str],
    seed: int,
    begin: Sequence[int] = (),
    answer_inside: bool = False,
) -> list[Prompt]:
    """The prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt.
    answer_inside: whether the length counts the answer too."""
    build_prompt = task.of_length(length)

    def build(case: int, size: int) -> Prompt:
        sample = build_prompt(size, random.Random(f"{task.name} {seed} {length} {case}"), haystack)
        return Prompt(tokens=(*begin, *encode(sample.prompt)), expected=sample.expected)

    return filled(build, n_cases, length - task.max_new_tokens * answer_inside, task.least)


def score(expected: Sequence[str], answer: str) -> float:
    """Share of the expected strings in the answer."""
    text = answer.casefold()
    return sum(string.casefold() in text for string in expected) / len(expected)


def essays(texts: Iterable[str]) -> tuple[str, ...]:
    """The sentences of some documents, in order, white space made single spaces."""
    return tuple(
        sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if sentence
    )
