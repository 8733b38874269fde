"""Suite `diagnostics`: short tasks with exact answers (data/diagnostics.py), by length.

For models that learned them (`data=diagnostics`): what they can do at the lengths that they were trained at, and how
far beyond it still works.

* Examples: n_cases of each task and length L, the longest of at most L tokens; of the split `test`, which no training
  has.
* Right: a token of an answer, when it is the most likely one after everything before it, earlier answers as they should
  be. An example counts by the tokens of its answers.
* Learned: at least learned_share of the tokens at the longest length within the training window. What is not learned
  cannot fail to go further, so the sentence on a model is of what it has learned.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.data.diagnostics import LEAST, TASKS, chance, examples, vocabulary
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import by_point, document, heat_maps, table
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.report.blocks import Document, Value
from coca_train.runtime import dist
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import clustered_share

PAD = 0  # after an example, where nothing is asked: no earlier token sees it


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Short tasks with exact answers."""

    suite: Literal["diagnostics"]
    tasks: Annotated[list[Literal[tuple(TASKS)]], Field(min_length=1)] = Field(  # type: ignore[valid-type]
        default=list(TASKS), description="which tasks, by name"
    )
    n_cases: Positive = Field(description="examples of each task and length")
    learned_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a task counts as learned when at least this share of its answers' tokens is right at the longest "
        "length within the training window"
    )


class Case(NamedTuple):
    """An example as one model reads it. answers: where its answers are, [begin, end). chance: of a right guess."""

    task: str
    tokens: tuple[int, ...]
    answers: tuple[range, ...]
    chance: float


class Part(TypedDict):
    """Of one example: tokens of answers that are right, and all."""

    right: int
    asked: int


class OfTask(TypedDict):
    """Of one task, by example. chance: the share that guesses get right. units: a digest of what was asked."""

    right: list[int]
    asked: list[int]
    chance: float
    units: str


class Result(TypedDict):
    """By name."""

    tasks: dict[str, OfTask]


class Evaluator(CellSuite[Settings, Mapping[Point, Sequence[Case]], Part, Result]):
    """Answers of diagnostics by length."""

    VERSION = 2
    AXIS = ("learned_share",)

    def prepare(self, subject: Subject, setup: Setup) -> dict[Point, list[Case]]:
        if self._missing(subject):
            return {point: [] for point in setup.points}
        token_ids = {symbol: subject.tokenizer.encode(symbol)[0] for symbol in vocabulary()}
        return {point: list(self._cases(int(point), setup.seed, token_ids)) for point in setup.points}

    def _cases(self, length: int, seed: int, token_ids: Mapping[str, int]) -> Iterator[Case]:
        if length < LEAST:
            return
        for task in self.settings.tasks:
            for example in examples(task, length, "test", seed, self.settings.n_cases):
                tokens = tuple(token_ids[symbol] for symbol in example.symbols)
                yield Case(task, tokens, tuple(example.answers), chance(example))

    def _missing(self, subject: Subject) -> str:
        """Return a symbol that is not one token of the model's; "": none."""
        return next((symbol for symbol in vocabulary() if len(subject.tokenizer.encode(symbol)) != 1), "")

    def work(self, subject: Subject, points: Sequence[Point], material: Mapping[Point, Sequence[Case]]) -> list[float]:
        return [float(sum(len(case.tokens) for case in material[point])) for point in points]

    def fingerprint(self, material: Mapping[Point, Sequence[Case]], point: Point) -> str:
        return _digest(material[point])

    def impossible(self, subject: Subject, point: Point, material: Mapping[Point, Sequence[Case]]) -> str:
        if symbol := self._missing(subject):
            return f"its tokenizer has no token for {symbol!r}; diagnostics are for models that learned them"
        if int(point) < LEAST:
            return f"the shortest examples have {LEAST} tokens"
        return missing_positions(subject.model, int(point))

    @torch.no_grad()
    def measure(
        self, subject: Subject, point: Point, material: Mapping[Point, Sequence[Case]], setup: Setup
    ) -> dict[str, Part]:
        cases, parts = material[point], dict[str, Part]()
        device = next(subject.model.parameters()).device
        size = max(1, setup.micro_batch_tokens // int(point))
        batches = [range(begin, min(begin + size, len(cases))) for begin in range(0, len(cases), size)]
        for number, batch in enumerate(batches):
            if number % dist.world_size() != dist.rank():
                continue
            tokens_BT = torch.full((len(batch), int(point)), PAD)
            for row, index in enumerate(batch):
                tokens_BT[row, : len(cases[index].tokens)] = torch.tensor(cases[index].tokens)
            said_BT = subject.model(tokens_BT.to(device), length=int(point)).argmax(-1).cpu()
            for row, index in enumerate(batch):
                at = [place for answer in cases[index].answers for place in answer]
                right = [cases[index].tokens[place] == int(said_BT[row, place - 1]) for place in at]
                parts[str(index)] = {"right": sum(right), "asked": len(right)}
            setup.progress((number + 1) / len(batches))
        return parts

    def combine(self, point: Point, material: Mapping[Point, Sequence[Case]], parts: Mapping[str, Part]) -> Result:
        tasks = dict[str, OfTask]()
        for task in self.settings.tasks:
            indices = [index for index, case in enumerate(material[point]) if case.task == task]
            cases, of_task = [material[point][index] for index in indices], [parts[str(index)] for index in indices]
            asked = [part["asked"] for part in of_task]
            expected = sum(case.chance * n for case, n in zip(cases, asked, strict=True))
            tasks[task] = {
                "right": [part["right"] for part in of_task],
                "asked": asked,
                "chance": expected / sum(asked),
                "units": _digest(cases),
            }
        return {"tasks": tasks}

    def page(self, evaluation: Evaluation[Result]) -> Document:
        rows, tasks = evaluation.rows(), self.settings.tasks
        lengths = [int(point) for point in evaluation.points]
        shown = table(
            rows,
            by_point(evaluation.points, lambda result, task: share(result["tasks"][task])),
            by={"task": tuple(tasks)},
            name="diagnostics-right",
            title="Share of the answers' tokens that are right, by length [tokens]",
            best="high",
            note="With its interval over examples, 95 %.",
        )

        def square(row: GridRow[Result], length: int, y: int) -> float | None:
            return share(row.results[length]["tasks"][tasks[y]]).number if length in row.results else None

        maps = heat_maps(
            [row for row in rows if row.results],
            lengths,
            list(tasks),
            square,
            n=self.settings.n_cases,
            name="diagnostics-map",
            title="Share of the answers that are right, by task and length",
            y_label="task",
        )
        return document(
            evaluation,
            "Diagnostics",
            summary=[_sentence(row, self.settings) for row in rows if row.results],
            sections={"By task and length": [maps, shown]},
            after={"Tasks": ["\n".join(_chances(rows))], "Definition": [DEFINITION]},
            facts=[("examples", f"{self.settings.n_cases} of each task and length")],
        )


DEFINITION = (
    "An example is a row of symbols, each one token; answers stand between = and ;. A token of one is right when it is "
    "the most likely one after everything before it, with earlier answers as they should be. Examples of length L have "
    " at most L tokens, and as many as their form allows. A task that a model has not learned within its training "
    "window cannot fail to go further."
)


def share(of_task: OfTask) -> Value:
    """Return the share of right tokens, with its interval over examples."""
    bounds = clustered_share(of_task["right"], of_task["asked"])
    sums_U2 = np.stack((of_task["right"], of_task["asked"]), 1).astype(float)
    sample = Sample(sums_SU2=sums_U2[None], units=of_task["units"])
    return Value.of(bounds.estimate, low=bounds.low, high=bounds.high, n=bounds.n, sample=sample)


def learned(row: GridRow[Result], least: float) -> dict[str, int]:
    """Return the tasks that a model has learned, and up to which length [tokens] each still works: up to the last
    length at which, as at all before, at least this share of its answers is right."""
    lengths = sorted(int(point) for point in row.results)
    within = [length for length in lengths if length <= row.subject.training_window]
    found = dict[str, int]()
    for task in row.results[lengths[0]]["tasks"] if within else ():
        right = {n: share(row.results[n]["tasks"][task]).number or 0.0 for n in lengths}
        if right[within[-1]] >= least:
            failed = [n for n in lengths if n > within[-1] and right[n] < least]
            found[task] = max(n for n in lengths if n < min(failed, default=n + 1))
    return found


def _sentence(row: GridRow[Result], settings: Settings) -> str:
    known, window = learned(row, settings.learned_share), row.subject.training_window
    within = max((int(point) for point in row.results if int(point) <= window), default=None)
    if within is None:
        return f"{row.label}: was not measured within its training window of {window:,} tokens."
    if not known:
        return f"{row.label}: has learned none of {len(settings.tasks)} tasks at {within:,} tokens."
    by_length: dict[int, list[str]] = {}
    for task, length in known.items():
        by_length.setdefault(length, []).append(task)
    listed = "; ".join(f"up to {length:,} tokens: {', '.join(by_length[length])}" for length in sorted(by_length)[::-1])
    return f"{row.label}: has learned {len(known)} of {len(settings.tasks)} tasks at {within:,} tokens; {listed}."


def _chances(rows: Sequence[GridRow[Result]]) -> list[str]:
    """Say what each task asks, and how often a guess is right at the shortest and the longest length."""
    by_length = {int(point): result["tasks"] for row in rows for point, result in row.results.items()}
    ends = sorted({min(by_length), max(by_length)}) if by_length else []

    def said(task: str) -> str:
        return " and ".join(f"{by_length[length][task]['chance']:.1%} at {length:,} tokens" for length in ends)

    return (
        [f"* {task}: {TASKS[task].meaning} By {TASKS[task].guess}: {said(task)}." for task in by_length[ends[0]]]
        if ends
        else []
    )


def _digest(cases: Sequence[Case]) -> str:
    whole = hashlib.sha256()
    for case in cases:
        whole.update(f"{case.tokens}{case.answers}\n".encode())
    return whole.hexdigest()
