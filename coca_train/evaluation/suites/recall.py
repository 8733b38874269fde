"""Suite `recall`: at which lengths, depths and distances a model finds a key's value in JSON (measures/recall.py).

At each length: `accuracy`, the share of cases whose greedy answer is the value, its 95 % interval (Wilson); `others`,
the share whose answer is another pair's value; `chance`, the share that would be found by giving any of the values; and
the cases: value, pairs, depth, distance, found, and the answer's first characters.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.data.prompts import Form
from coca_train.evaluation.grid_blocks import by_point, document, table
from coca_train.evaluation.measures import recall
from coca_train.evaluation.measures.recall import Case
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._answers import answers, digest, gathered, no_positions
from coca_train.evaluation.suites._found import asked, at_the_longest, by_depth, by_distance, by_length, counted, share
from coca_train.evaluation.verdict import verdicts
from coca_train.report.blocks import Document

__all__ = ["asked"]  # of what suites share

VERSION = 1
AXIS = ("found_share",)
ANSWER_CHARACTERS = 60  # of each answer that are kept

Material = Mapping[Point, Sequence[Case]]  # by length


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Key-value recall."""

    suite: Literal["recall"]
    keys: Form = Field(
        description="what keys are. words: made-up, of three syllables; common: nouns of everyday, for models that "
        "are too small for others; digits: six; hex: eight; uuid: 36 characters, as in Lost in the Middle. Small "
        "tokenizers have many tokens for the longer ones"
    )
    values: Form = Field(description="what values are, of the same forms")
    n_cases: Positive = Field(description="prompts of each length")
    places: Literal["uniform", "even"] = Field(
        description="where the asked pair stands. uniform: drawn for each case; even: at n_depths depths in turn, from "
        "the first pair to the last"
    )
    n_depths: Positive = Field(description="depths of places=even, and rows of the heat maps")
    found_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a length counts as found when surely more than this share of its prompts is answered as it must be"
    )


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    """Raises DataError E-EVAL-21."""
    return {
        length: recall.cases(
            subject.tokenizer.encode,
            int(length),
            settings.n_cases,
            keys=settings.keys,
            values=settings.values,
            places=settings.places,
            n_depths=settings.n_depths,
            seed=setup.seed,
            begin=subject.begin,
        )
        for length in setup.points
    }


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens]"""
    new = {point: recall.max_new_tokens(material[point]) for point in points}
    return [float(sum(len(case.tokens) + new[point] for case in material[point])) for point in points]


def fingerprint(material: Material, point: Point) -> str:
    return digest((case.tokens, [case.value]) for case in material[point])


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    if not material[point]:
        return f"{point:,} tokens have no room for {recall.LEAST} pairs and the key"
    return no_positions(subject, [case.tokens for case in material[point]], recall.max_new_tokens(material[point]))


def measure(settings: Settings, subject: Subject, point: int, material: Material, setup: Setup) -> Any:
    prompts = [case.tokens for case in material[point]]
    return answers(subject, prompts, point, recall.max_new_tokens(material[point]), setup)


def combine(settings: Settings, point: int, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
    cases, texts = material[point], gathered(parts)
    given = [recall.given(text) for text in texts]
    kept = [
        {
            "value": case.value,
            "n_pairs": len(case.values),
            "depth": case.depth,
            "distance": case.distance,
            "found": value == case.value,
            "answer": text[:ANSWER_CHARACTERS],
        }
        for case, value, text in zip(cases, given, texts, strict=True)
    ]
    others = [value in case.values and value != case.value for case, value in zip(cases, given, strict=True)]
    return counted(kept) | {
        "others": sum(others) / len(cases),
        "chance": statistics.fmean(1 / len(case.values) for case in cases),
    }


DEFINITION = (
    "A prompt is a JSON object of random keys and values, a pair on each line, and one of its keys again with a colon; "
    "as many pairs as keep it within the length, and no instruction (after Lost in the Middle, arXiv 2307.03172). The "
    "answer is greedy and comes on top; it is right when it is the value, exactly. Another pair's value shows a model "
    "that copies and does not match: by giving any of the n values one finds 1 / n. Depth is the asked pair's place, 0 "
    "the first pair and 1 the last; distance is how far its line begins from the end of the prompt [tokens]. Dynamic "
    "frequencies see the length and the new tokens throughout. Intervals are Wilson's, 95 %."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    rows, points = evaluation.rows(), evaluation.points
    found = table(
        rows,
        by_point(points, lambda result: share(result["cases"])),
        name="recall-found",
        title="Share of values found by length of the prompt [tokens]",
        best="high",
    )
    return document(
        evaluation,
        "Key-value recall",
        summary=at_the_longest(evaluation, "values", found),
        sections={
            "Found by length": [
                by_length(
                    evaluation,
                    name="recall-by-length",
                    title="Values found by length",
                    alt="Share of values found against the length of the prompt, one curve a model and variant.",
                    y_label="share of values found",
                ),
                found,
                table(
                    rows,
                    by_point(points, lambda result, what: result[OTHERWISE[what]]),
                    by={"share": tuple(OTHERWISE)},
                    name="recall-others",
                    title="Another pair's value given instead, and what any of the values would find",
                ),
            ],
            "Where the pair stands": [
                by_depth(
                    evaluation,
                    settings.n_depths,
                    name="recall-depth",
                    title="Values found by length and depth",
                    y_label="depth of the pair",
                    note="A pair counts to the nearest row. The line marks the training window.",
                )
            ],
            "How far away the pair is": [
                by_distance(
                    evaluation,
                    name="recall-by-distance",
                    title="Share of values found by distance of the pair",
                    note="Cases of all lengths together; windows are the model's training window.",
                )
            ],
        },
        after={"Definition": [DEFINITION]},
        facts=[
            ("cases", f"{evaluation.settings['n_cases']} at each length"),
            ("pairs", f"keys are {evaluation.settings['keys']}, values {evaluation.settings['values']}"),
        ],
        verdicts=verdicts(evaluation, asked(evaluation)),
    )


OTHERWISE = {"another pair's value": "others", "by any of the values": "chance"}
