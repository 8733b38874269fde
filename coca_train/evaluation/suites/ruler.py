"""Suite `ruler`: tasks in the manner of RULER by length: retrieval, tracing, counting (measures/ruler defines them).

A point is task@length. Its result: `score`, the mean over its cases of the share of expected strings that the greedy
answer contains; `standard_error` of that mean (None with one case); and the cases: score and the answer's beginning.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.ruler import TASKS, haystack
from coca_train.evaluation.measures.ruler.base import Prompt, cases, score
from coca_train.evaluation.pages.ruler import page as page
from coca_train.evaluation.results import Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._answers import answers, digest, gathered, no_positions
from coca_train.runtime.errors import DataError

VERSION = 1
CACHED = True
AXIS = ("tasks",)
ANSWER_CHARACTERS = 80  # of each answer that are kept

Material = Mapping[Point, Sequence[Prompt]]


def _known(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"one of {', '.join(TASKS)} is needed")
    return name


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """RULER's kinds of tasks."""

    suite: Literal["ruler"]
    tasks: Annotated[list[Annotated[str, AfterValidator(_known)]], Field(min_length=1)] = Field(
        description="what is asked: needle, needle_keys, needle_values, needle_queries, variables, common_words, "
        "frequent_words (docs/evaluation.md)"
    )
    n_cases: Positive = Field(description="prompts of each task and length; RULER has 500")
    haystack: Literal["filler", "texts"] = Field(
        description="where needles and variables are hidden. filler: the passkey's, over and over; texts: sentences "
        "of the documents that section text names"
    )


def points(settings: Settings, lengths: Sequence[int]) -> tuple[Point, ...]:
    return tuple(f"{task}@{length}" for task in settings.tasks for length in lengths)


def parted(point: Point) -> tuple[str, int]:
    """Task and length of a point."""
    task, _, length = str(point).partition("@")
    return task, int(length)


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    """Raises DataError E-EVAL-20 when the documents have no sentence."""
    units = haystack.NOISE
    if settings.haystack == "texts":
        units = haystack.essays(text for texts in setup.texts().values() for text in texts)
        if not units:
            raise DataError(
                "E-EVAL-20 text: the documents are empty; needles are to be hidden in them. Fix: name others in "
                "text.files, or eval.haystack=filler"
            )
    return {
        point: cases(
            TASKS[task],
            subject.tokenizer.encode,
            length,
            settings.n_cases,
            haystack=units,
            seed=setup.seed,
            begin=subject.begin,
        )
        for point in setup.points
        for task, length in [parted(point)]
    }


def work(settings: Settings, subject: Subject, points: Sequence[Point], material: Material) -> list[float]:
    """[tokens]"""
    n_new = {point: TASKS[parted(point)[0]].max_new_tokens for point in points}
    return [float(sum(len(prompt.tokens) + n_new[point] for prompt in material[point])) for point in points]


def fingerprint(material: Material, point: Point) -> str:
    return digest((prompt.tokens, prompt.expected) for prompt in material[point])


def impossible(settings: Settings, subject: Subject, point: Point, material: Material) -> str:
    task, length = parted(point)
    if not material[point]:
        return f"the shortest prompt of {task} is longer than {length:,} tokens"
    return no_positions(subject, [prompt.tokens for prompt in material[point]], TASKS[task].max_new_tokens)


def measure(settings: Settings, subject: Subject, point: Point, material: Material, setup: Setup) -> Any:
    task, length = parted(point)
    return answers(subject, [prompt.tokens for prompt in material[point]], length, TASKS[task].max_new_tokens, setup)


def combine(settings: Settings, point: Point, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
    texts = gathered(parts)
    scores = [score(prompt.expected, text) for prompt, text in zip(material[point], texts, strict=True)]
    n = len(scores)
    return {
        "score": statistics.fmean(scores),
        "standard_error": statistics.stdev(scores) / math.sqrt(n) if n > 1 else None,
        "n_cases": n,
        "cases": [{"score": s, "answer": t[:ANSWER_CHARACTERS]} for s, t in zip(scores, texts, strict=True)],
    }
