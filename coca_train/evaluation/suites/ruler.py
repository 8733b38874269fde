"""Suite `ruler`: tasks in the manner of RULER (Hsieh et al., arXiv 2404.06654) at any length: retrieval, tracing,
counting. The tasks are in data/ruler.py, in words of our own.

A task builds its prompt around a haystack of `size` units (sentences, words), fitted to L tokens (_prompts.py); with
answer_inside, as RULER does, to those that the new tokens of its answer leave. The score is the share of the expected
strings that the generated text contains, upper and lower case taken as equal (RULER's string match). A point is
task@length.
"""

import math
import random
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypedDict

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.data.ruler import NOISE, TASKS, Task
from coca_train.evaluation.pages import (
    best_at_the_longest,
    document,
    figure,
    heading,
    heat_maps,
    share_curves,
    table,
    tokens,
)
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import in_order
from coca_train.evaluation.suites._prompts import Encode, PromptSuite, fill_prompts
from coca_train.evaluation.verdict import verdicts
from coca_train.report.blocks import Document, Line, Value
from coca_train.report.headlines import POINTS
from coca_train.runtime.errors import DataError
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import wilson

KEPT = 80  # of each answer [characters]


class Prompt(NamedTuple):
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
    """Make the prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt.
    answer_inside: whether the length counts the answer too."""
    build_prompt = task.of_length(length)

    def build(case: int, size: int) -> Prompt:
        sample = build_prompt(size, random.Random(f"{task.name} {seed} {length} {case}"), haystack)
        return Prompt(tokens=(*begin, *encode(sample.prompt)), expected=sample.expected)

    return fill_prompts(build, n_cases, length - task.max_new_tokens * answer_inside, task.least)


def score(expected: Sequence[str], answer: str) -> float:
    """Return the share of the expected strings in the answer."""
    text = answer.casefold()
    return sum(string.casefold() in text for string in expected) / len(expected)


def essays(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the sentences of some documents, in order, white space made single spaces."""
    return tuple(
        sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if sentence
    )


def split_point(point: Point) -> tuple[str, int]:
    """Split a point into task and length."""
    task, _, length = str(point).partition("@")
    return task, int(length)


def axes(evaluation: "Evaluation[Result]") -> tuple[list[str], list[int]]:
    """Return the tasks and the lengths of a grid."""
    tasks, lengths = zip(*map(split_point, evaluation.points), strict=True)
    return list(dict.fromkeys(tasks)), list(dict.fromkeys(lengths))


def _known_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"one of {', '.join(TASKS)} is needed")
    return name


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """RULER's kinds of tasks."""

    suite: Literal["ruler"]
    tasks: Annotated[list[Annotated[str, AfterValidator(_known_task)]], Field(min_length=1)] = Field(
        description="what is asked: needle, needle_keys, needle_values, needle_queries, variables, common_words, "
        "frequent_words, and word, word_keys, word_values, word_queries, for models that are too small for numbers "
        "(docs/evaluation.md)"
    )
    n_cases: Positive = Field(description="prompts of each task and length; RULER has 500")
    answer_inside: bool = Field(
        description="a length counts the new tokens of an answer too, as in RULER; false: the prompt alone"
    )
    haystack: Literal["filler", "texts"] = Field(
        description="where needles and variables are hidden. filler: the passkey's, over and over; texts: sentences "
        "of the documents that section text names"
    )
    found_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a length counts as worked with when surely more than this share of its prompts is answered "
        "as it must be"
    )


DEFINITION = (
    "A score is the share of the expected strings that the greedy answer contains, upper and lower case taken as "
    "equal, averaged over cases, with Wilson's 95 % interval over them. The tasks are in the manner of RULER (arXiv "
    "2404.06654) with texts of our own, so the figures compare the models here with one another, not with RULER's "
    "tables."
)


class Case(TypedDict):
    """A prompt: the share of the expected strings in its answer."""

    score: float
    answer: str


class Result(TypedDict):
    """score: the mean, with its standard error, None of one case. prompts: a digest of what was asked."""

    score: float
    standard_error: float | None
    n_cases: int
    prompts: str
    cases: list[Case]


class Evaluator(PromptSuite[Settings, Prompt, Result]):
    """Tasks in the manner of RULER by length."""

    VERSION = 3
    AXIS = ("tasks", "found_share")
    PART = "works with"

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        return tuple(f"{task}@{length}" for task in self.settings.tasks for length in lengths)

    def prepare(self, subject: Subject, setup: Setup) -> dict[Point, list[Prompt]]:
        """Make the prompts. Raises DataError E-EVAL-20 when the documents have no sentence."""
        units = NOISE
        if self.settings.haystack == "texts":
            units = essays(text for texts in setup.texts().values() for text in texts)
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
                self.settings.n_cases,
                haystack=units,
                seed=setup.seed,
                begin=subject.begin,
                answer_inside=self.settings.answer_inside,
            )
            for point in setup.points
            for task, length in [split_point(point)]
        }

    def no_room(self, subject: Subject, point: Point) -> str:
        task, length = split_point(point)
        counted = ", its answer included" if self.settings.answer_inside else ""
        return f"the shortest prompt of {task} is longer than {length:,} tokens{counted}"

    def expected(self, case: Prompt) -> Sequence[str]:
        return case.expected

    def max_new_tokens(self, point: Point, cases: Sequence[Prompt]) -> int:
        return TASKS[split_point(point)[0]].max_new_tokens

    def prompt_length(self, point: Point) -> int:
        task, length = split_point(point)
        return length - TASKS[task].max_new_tokens * self.settings.answer_inside

    def combine(self, point: Point, material: Mapping[Point, Sequence[Prompt]], parts: Mapping[str, str]) -> Result:
        texts = in_order(parts)
        scores = [score(prompt.expected, text) for prompt, text in zip(material[point], texts, strict=True)]
        n = len(scores)
        return {
            "score": statistics.fmean(scores),
            "standard_error": statistics.stdev(scores) / math.sqrt(n) if n > 1 else None,
            "n_cases": n,
            "prompts": self.fingerprint(material, point),
            "cases": [{"score": each, "answer": text[:KEPT]} for each, text in zip(scores, texts, strict=True)],
        }

    def page(self, evaluation: Evaluation[Result]) -> Document:
        rows, (tasks, lengths) = evaluation.rows(), axes(evaluation)
        about = "\n".join(f"* `{task}`: {TASKS[task].about}, {TASKS[task].max_new_tokens} new tokens" for task in tasks)
        means = table(
            rows,
            {heading(n): lambda row, n=n: _mean(row, tasks, n) for n in lengths},
            name="ruler-mean",
            title="Mean score over all tasks by length [tokens]",
            best="high",
            note="Only lengths at which every task was measured have a mean.",
        )
        by_task = table(
            rows,
            {heading(n): lambda row, task, n=n: figure(row.cells.get(f"{task}@{n}"), _score) for n in lengths},
            by={"task": tasks},
            name="ruler-tasks",
            title="Score by task and length [tokens]",
        )

        def score_at(row: GridRow[Result], length: int, y: int) -> float | None:
            result = row.results.get(f"{tasks[y]}@{length}")
            return result and result["score"]

        return document(
            evaluation,
            "Tasks in the manner of RULER",
            summary=best_at_the_longest(
                rows, means, "In prompts of {} tokens", "is best", "mean score", POINTS, "prompts"
            ),
            sections={
                "Mean over tasks": [
                    share_curves(
                        evaluation,
                        (Line.of_values(row.label, ((n, _mean(row, tasks, n)) for n in lengths)) for row in rows),
                        name="ruler-by-length",
                        title="Mean score over all tasks by length",
                        y_label="mean score",
                    ),
                    means,
                ],
                "Task by task": [
                    heat_maps(
                        rows,
                        lengths,
                        tasks,
                        score_at,
                        n=self.settings.n_cases,
                        name="ruler-map",
                        title="Score by task and length",
                        y_label="task",
                    ),
                    by_task,
                ],
            },
            after={"Definition": [DEFINITION, about]},
            facts=[("cases", f"{self.settings.n_cases} for each task and length")],
            at=f"{len(tasks)} tasks of {tokens(lengths)}" if len(tasks) > 1 else f"{tasks[0]} of {tokens(lengths)}",
            verdicts=verdicts(evaluation, self.reach_parts(evaluation)),
        )

    def hits(self, evaluation: Evaluation[Result], row: GridRow[Result]) -> tuple[dict[int, list[bool]], str]:
        """Return whether all that is expected is in the answer: every task's prompts together, of lengths at which
        every task was measured."""
        tasks, lengths = axes(evaluation)
        done: dict[int, list[bool]] = {}
        for length in lengths:
            results = [row.results.get(f"{task}@{length}") for task in tasks]
            if all(results):
                done[length] = [case["score"] == 1 for result in results if result for case in result["cases"]]
        beyond = next((length for length in lengths if length > max(done, default=0)), 0)
        absences = [cell.absence for task in tasks if (cell := row.cells.get(f"{task}@{beyond}"))]
        return done, next(filter(None, absences), "")


def _mean(row: GridRow[Result], tasks: Sequence[str], length: int) -> Value:
    """Return the mean over all tasks; nothing when one of them was not measured at this length, as the mean would be of
    others."""
    known = [row.results[point] for task in tasks if (point := f"{task}@{length}") in row.results]
    if len(known) < len(tasks):
        return Value.of(None, missing=f"measured on {len(known)} of {len(tasks)} tasks only")
    return _share(known)


def _score(result: Result) -> Value:
    error = result["standard_error"]
    spread = "" if error is None else f", standard error {error:.3f}"
    return _share([result], f"{result['n_cases']} cases{spread}")


def _share(results: Sequence[Result], note: str = "") -> Value:
    """Return a mean of scores with Wilson's interval: a score between 0 and 1 varies at most as right and wrong do, and
    a mean over tasks at most as one over all their cases. Every task counts as much as another."""
    score, n = statistics.fmean(result["score"] for result in results), sum(result["n_cases"] for result in results)
    low, high = wilson(score * n, n)
    scores = [case["score"] for result in results for case in result["cases"]]
    weights = [1 / result["n_cases"] for result in results for _ in result["cases"]] if len(results) > 1 else None
    sample = Sample.of_shares(scores, " ".join(result["prompts"] for result in results), weights)
    return Value.of(score, note=note, low=low, high=high, n=n, sample=sample)
