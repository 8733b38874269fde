"""Suite `recall`: a JSON object of random keys and values, then one of its keys (Liu et al., arXiv 2307.03172), by
length, depth and distance.

Every pair looks like every other one, so a model must match the key over the whole length, as in HELMET (arXiv
2410.02694). There is no instruction: models that were never tuned for any see the form of the answer in every line.

    {
    "bamilo": "tufage",
    "kirado": "zolane"
    }
    "bamilo":

* Length: as many pairs, at least two, as fit into L tokens (_prompts.py; a token that begins texts counted). What is
  generated comes on top.
* Place: `choose_place`; depth is i / (n - 1): 0 the first pair, 1 the last one.
* Distance: tokens of the prompt minus those before the asked pair's line.
* Found: the generated text is the value, exactly: white space, a quotation mark, the value, a quotation mark, whatever
  comes then. `others` counts another pair's value: such a model copies, but does not match. `chance`: by saying any of
  the n values it finds 1 / n.
"""

import random
import re
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.data.prompts import FORMS, HOW_MANY, Form, different, recall_answer, recall_prefix, recall_prompt
from coca_train.evaluation.pages import by_point, table
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Subject
from coca_train.evaluation.suites._prompts import (
    Encode,
    Found,
    FoundSettings,
    FoundSuite,
    Places,
    choose_place,
    fill_prompts,
)
from coca_train.report.blocks import Document
from coca_train.runtime.errors import DataError

LEAST = 2  # pairs
SPARE = 2  # new tokens more than the answer has, for a tokenizer that splits it otherwise after its prompt


class Case(NamedTuple):
    """One prompt. values: of all pairs. depth, distance [tokens]: see the module. answer_tokens: of what is right."""

    key: str
    value: str
    values: tuple[str, ...]
    depth: float
    distance: int
    answer_tokens: int
    tokens: tuple[int, ...]


def cases(
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    keys: Form,
    values: Form,
    places: Places,
    n_depths: int,
    seed: int,
    begin: Sequence[int] = (),
) -> list[Case]:
    """Make the prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt.

    Raises DataError E-EVAL-21 when it has room for more pairs than a form has.
    """

    def build(case: int, size: int) -> Case:
        for form in (keys, values):
            if size > HOW_MANY.get(form, size):
                raise DataError(
                    f"E-EVAL-21 grid.lengths: {length:,} tokens have room for more than the {HOW_MANY[form]} pairs "
                    f"that form {form!r} makes. Fix: ask for shorter lengths, or for eval.keys=words and "
                    "eval.values=words"
                )
        # Three generators, so that pairs are added at the end and the place does not depend on how many there are.
        of_keys, of_values, of_place = (
            random.Random(f"recall {what} {seed} {length} {case}") for what in ("keys", "values", "place")
        )
        known = different(size, lambda: FORMS[keys](of_keys))
        held = different(size, lambda: FORMS[values](of_values))
        asked = choose_place(of_place.random(), case, size - 1, places, n_depths)
        prompt = recall_prompt(known, held, known[asked])
        tokens = encode(prompt)
        return Case(
            key=known[asked],
            value=held[asked],
            values=tuple(held),
            depth=asked / (size - 1),
            distance=len(tokens) - len(encode(recall_prefix(known, held, asked))),
            answer_tokens=len(encode(prompt + recall_answer(held[asked]))) - len(tokens),
            tokens=(*begin, *tokens),
        )

    return fill_prompts(build, n_cases, length, LEAST)


def new_tokens(prompts: Sequence[Case]) -> int:
    """Return the length of every answer to these prompts [tokens]."""
    return max((case.answer_tokens for case in prompts), default=0) + SPARE


def value_in(answer: str) -> str | None:
    """Return the value that a generated text gives; None where it is no string."""
    string = re.match(r'\s*"([^"]*)"', answer)
    return None if string is None else string[1]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(FoundSettings):
    """Key-value recall."""

    suite: Literal["recall"]
    keys: Form = Field(
        description="what keys are. words: made-up, of three syllables; common: nouns of everyday, for models that "
        "are too small for others; digits: six; hex: eight; uuid: 36 characters, as in Lost in the Middle. Small "
        "tokenizers have many tokens for the longer ones"
    )
    values: Form = Field(description="what values are, of the same forms")


DEFINITION = (
    "A prompt is a JSON object of random keys and values, a pair on each line, and one of its keys again with a colon; "
    "as many pairs as keep it within the length, and no instruction (after Lost in the Middle, arXiv 2307.03172). The "
    "answer is greedy and comes on top; it is right when it is the value, exactly. Another pair's value shows a model "
    "that copies and does not match: by giving any of the n values one finds 1 / n. Depth is the asked pair's place, 0 "
    "the first pair and 1 the last; distance is how far its line begins from the end of the prompt [tokens]. Dynamic "
    "frequencies see the length and the new tokens throughout. Intervals are Wilson's, 95 %."
)


OTHERWISE = {"another pair's value": "others", "by any of the values": "chance"}


class Evaluator(FoundSuite[Settings, Case]):
    """Key-value recall by length, depth and distance."""

    VERSION = 2
    NAME, ITEM, ITEMS, KEPT = "recall", "pair", "values", 60

    def prompts(self, subject: Subject, length: int, seed: int) -> list[Case]:
        return cases(
            subject.tokenizer.encode,
            length,
            self.settings.n_cases,
            keys=self.settings.keys,
            values=self.settings.values,
            places=self.settings.places,
            n_depths=self.settings.n_depths,
            seed=seed,
            begin=subject.begin,
        )

    def no_room(self, subject: Subject, point: Point) -> str:
        return f"{point:,} tokens have no room for {LEAST} pairs and the key"

    def expected(self, case: Case) -> list[str]:
        return [case.value]

    def max_new_tokens(self, point: Point, cases: Sequence[Case]) -> int:
        return new_tokens(cases)

    def is_right(self, case: Case, answer: str) -> bool:
        return value_in(answer) == case.value

    def more(self, cases: Sequence[Case], answers: Sequence[str]) -> dict[str, float]:
        given = [(case, value_in(answer)) for case, answer in zip(cases, answers, strict=True)]
        return {
            "others": sum(value in case.values and value != case.value for case, value in given) / len(cases),
            "chance": statistics.fmean(1 / len(case.values) for case in cases),
        }

    def page(self, evaluation: Evaluation[Found]) -> Document:
        otherwise = table(
            evaluation.rows(),
            by_point(evaluation.points, lambda result, what: result["more"][OTHERWISE[what]]),
            by={"share": tuple(OTHERWISE)},
            name="recall-others",
            title="Another pair's value given instead, and what any of the values would find",
        )
        forms = f"keys are {self.settings.keys}, values {self.settings.values}"
        return self.found_page(
            evaluation, "Key-value recall", definition=DEFINITION, facts=[("pairs", forms)], tables=[otherwise]
        )
