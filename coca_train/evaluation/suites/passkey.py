"""Suite `passkey`: at which lengths, depths and distances a model finds a number in filler (measures/passkey.py).

At each length: `accuracy`, the share of cases whose answer has the key as a whole number, its 95 % interval (Wilson),
`contained`, the share with the key's digits anywhere, and the cases: key, depth, distance, found, and the answer's
first characters. Answers are greedy. An end-of-document token ends one; what a model would say after it does not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures import passkey
from coca_train.evaluation.measures.passkey import Case, wilson
from coca_train.evaluation.pages.passkey import page as page
from coca_train.evaluation.results import Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import at_lengths
from coca_train.evaluation.suites._answers import answers, digest, gathered, no_positions

VERSION = 1
CACHED = True
AXIS = ()
points = at_lengths
ANSWER_CHARACTERS = 40  # of each answer that are kept

Material = Mapping[Point, Sequence[Case]]  # by length


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Passkey retrieval."""

    suite: Literal["passkey"]
    n_cases: Positive = Field(description="prompts of each length; CoCA paper 100, YaRN 10")
    max_new_tokens: Positive = Field(description="length of an answer, which comes on top of the prompt [tokens]")
    places: Literal["uniform", "even"] = Field(
        description="where the key stands. uniform: drawn for each case (YaRN); even: at n_depths depths in turn, from "
        "right behind the task to right before the question"
    )
    n_depths: Positive = Field(description="depths of places=even, and rows of the heat maps")


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    return {
        length: passkey.cases(
            subject.tokenizer.encode,
            int(length),
            settings.n_cases,
            places=settings.places,
            n_depths=settings.n_depths,
            seed=setup.seed,
            begin=subject.begin,
        )
        for length in setup.points
    }


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens]"""
    return [float(sum(len(case.tokens) + settings.max_new_tokens for case in material[point])) for point in points]


def fingerprint(material: Material, point: Point) -> str:
    return digest((case.tokens, [str(case.key)]) for case in material[point])


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    if not material[point]:
        least = len(subject.begin) + len(subject.tokenizer.encode(passkey.prompt(passkey.LOWEST, 0, 0)))
        return f"{point:,} tokens have no room for the task, the key and the question, which take about {least}"
    return no_positions(subject, [case.tokens for case in material[point]], settings.max_new_tokens)


def measure(settings: Settings, subject: Subject, point: int, material: Material, setup: Setup) -> Any:
    prompts = [case.tokens for case in material[point]]
    return answers(subject, prompts, point, settings.max_new_tokens, setup)


def combine(settings: Settings, point: int, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
    cases, texts = material[point], gathered(parts)
    hits = [passkey.answered(case.key, text) for case, text in zip(cases, texts, strict=True)]
    contained = [passkey.contained(case.key, text) for case, text in zip(cases, texts, strict=True)]
    low, high = wilson(sum(hits), len(hits))
    return {
        "accuracy": sum(hits) / len(hits),
        "low": low,
        "high": high,
        "contained": sum(contained) / len(hits),
        "n_cases": len(hits),
        "cases": [
            {"key": c.key, "depth": c.depth, "distance": c.distance, "found": f, "answer": t[:ANSWER_CHARACTERS]}
            for c, f, t in zip(cases, hits, texts, strict=True)
        ],
    }
