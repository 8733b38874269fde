"""The page of the atlas: ranks, the matrix of methods and tasks, curves, and what separates methods."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coca_train.atlas.methods import METHODS, VARIANTS, title_of
from coca_train.atlas.trials import LEARNED, Trial
from coca_train.data.diagnostics import TASKS
from coca_train.report.blocks import Document, HeatMap, HeatMaps, Line, Lines, Row, Section, Table, Text, Value
from coca_train.statistics.ranks import Ranked, TaskDifference, over_seeds, rank

REFERENCE = "rope"
SHARE = "{:.0%}"
DEFINITION = (
    f"A task is learned by a training when at least {LEARNED:.0%} of its answers are right at the trained length; what "
    "is not learned cannot fail to go further, and has no score. Its score is the mean over the longer lengths of the "
    "share of right answers, from 0 for guessing to 1. A level is the expected mean score over all tasks: scores are "
    "fitted by least squares as method plus task, so that a method that has learned only the easy ones is no better "
    "for it. Intervals of levels and ranks are over draws of tasks and seeds (the bootstrap); those of differences add "
    "Student's over tasks and Student's over seeds."
)


@dataclass(frozen=True)
class Matrix:
    """Trials by row, seed and task."""

    trials: Mapping[tuple[str, int], Trial]

    @cached_property
    def rows(self) -> list[str]:
        """The rows in the order of the tables, then those of one's own."""
        known = [each.name for each in (*METHODS, *VARIANTS)]
        there = dict.fromkeys(row for row, _ in self.trials)
        return sorted(there, key=lambda row: known.index(row) if row in known else len(known))

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.trials})

    @cached_property
    def tasks(self) -> list[str]:
        return list(next(iter(self.trials.values())).tasks)

    @cached_property
    def lengths(self) -> list[int]:
        return list(next(iter(self.trials.values())).lengths)

    @cached_property
    def scores_MSK(self) -> np.ndarray:
        """By row, seed and task; NaN where it is not learned or there is no trial."""
        return np.array([[[self._score(row, seed, k) for k in self.tasks] for seed in self.seeds] for row in self.rows])

    def _score(self, row: str, seed: int, task: str) -> float:
        trial = self.trials.get((row, seed))
        return math.nan if trial is None else trial.score(task)

    def of(self, row: str) -> Iterator[Trial]:
        return (self.trials[row, seed] for seed in self.seeds if (row, seed) in self.trials)

    def n_learned(self, row: str, task: str) -> tuple[int, int]:
        """Return how many trials of a row have learned a task, and how many there are."""
        each = [trial.has_learned(task) for trial in self.of(row)]
        return sum(each), len(each)

    def share(self, row: str, task: str, length: int) -> Value:
        """Return the mean share of right answers over the seeds that have learned a task."""
        known = [trial.share(task, length) for trial in self.of(row) if trial.has_learned(task)]
        bounds = over_seeds(known)
        if not known:
            return Value.of(None, missing="not learned")
        low, high = (max(0.0, bounds.low), min(1.0, bounds.high)) if len(known) > 1 else (None, None)
        return Value.of(bounds.estimate, SHARE, low=low, high=high, n=len(known))


def page(trials: Sequence[Trial], command: str) -> Document:
    """Return the page of trials of one protocol."""
    matrix = Matrix({(trial.row, trial.seed): trial for trial in trials})
    ranked = dict(zip(matrix.rows, rank(matrix.scores_MSK), strict=True))
    order = sorted(matrix.rows, key=lambda row: (ranked[row].rank, -_learned(matrix, row)))
    learned = {task: any(matrix.n_learned(row, task)[0] for row in order) for task in matrix.tasks}
    return Document(
        title=f"Atlas: {len(matrix.rows)} position methods, {len(matrix.tasks)} tasks, up to {len(matrix.seeds)} seeds",
        finding=_finding(matrix, ranked, order),
        summary=(),
        sections=[
            Section(title="Ranks", blocks=[_ranks(matrix, ranked, order)]),
            Section(
                title="What separates them", blocks=[Text(text="\n".join(f"* {each}" for each in _separates(matrix)))]
            ),
            Section(title="How far each task still works", blocks=[_reach(matrix, order), _map(matrix, order)]),
            Section(title="Curves", blocks=[_curves(matrix, task, order) for task in matrix.tasks if learned[task]]),
            Section(title="Tasks", blocks=[Text(text="\n".join(_tasks(matrix)))], folded=True),
            Section(title="Definition", blocks=[Text(text=DEFINITION)], folded=True),
        ],
        facts=_facts(matrix),
        command=command,
    )


def _learned(matrix: Matrix, row: str) -> float:
    """Return the mean number of tasks that a training of a row has learned."""
    return float(np.mean([sum(map(trial.has_learned, trial.tasks)) for trial in matrix.of(row)]))


def _finding(matrix: Matrix, ranked: Mapping[str, Ranked], order: Sequence[str]) -> list[str]:
    first = order[0]
    if not math.isfinite(ranked[first].level.estimate):
        return [f"No task was learned at {matrix.lengths[0]} tokens."]
    alike = [row for row in order if ranked[row].best_rank == 1]
    said = title_of(first) if len(alike) == 1 else f"{title_of(first)}, or one of {len(alike) - 1} others that may be"
    return [f"{said} keeps the most of what it has learned beyond {matrix.lengths[0]} tokens."]


def _separates(matrix: Matrix) -> list[str]:
    """Return a sentence on each task: who keeps the most of it beyond the training window, and what RoPE keeps."""
    said, at = [], matrix.lengths[1]
    for k, task in enumerate(matrix.tasks):
        scores = {row: over_seeds(matrix.scores_MSK[m, :, k]) for m, row in enumerate(matrix.rows)}
        known = {row: each for row, each in scores.items() if each.n * 2 > len(matrix.seeds)}
        if not known:
            said.append(f"{task}: no method has learned it by most of its seeds.")
            continue
        best = max(known, key=lambda row: known[row].estimate)
        if not known[best].excludes(0):
            said.append(f"{task}: no method demonstrably keeps any of it beyond {matrix.lengths[0]} tokens.")
            continue
        share = matrix.share(best, task, at)
        other = matrix.share(REFERENCE, task, at) if REFERENCE in known and best != REFERENCE else None
        against = f", {title_of(REFERENCE)} {other.text} ({other.range})" if other is not None else ""
        works = sorted(trial.works_to(task) for trial in matrix.of(best) if trial.has_learned(task))
        said.append(
            f"{task}: {title_of(best)} gives {share.text} ({share.range}) right answers at {at:,} tokens{against}; it "
            f"works to {works[len(works) // 2]:,} tokens."
        )
    return said


def _ranks(matrix: Matrix, ranked: Mapping[str, Ranked], order: Sequence[str]) -> Table:
    index = {row: number for number, row in enumerate(matrix.rows)}

    def row_of(row: str) -> Row:
        found, level = ranked[row], ranked[row].level
        known = math.isfinite(level.estimate)
        ranks = f"{found.rank} ({found.best_rank} to {found.worst_rank})"
        apart = _against(matrix, index, row)
        return Row(
            label=(title_of(row),),
            values=(
                Value(ranks, number=float(found.rank)) if known else Value.of(None, missing="no task is learned"),
                Value.of(level.estimate if known else None, SHARE, low=level.low, high=level.high, n=level.n),
                apart,
                Value.of(_learned(matrix, row), "{:.1f}"),
                Value.of(float(next(matrix.of(row)).n_parameters), "{:,.0f}"),
            ),
        )

    return Table(
        name="ranks",
        title=f"Ranks over {len(matrix.tasks)} tasks",
        label_columns=("method",),
        columns=("rank", "level", "minus RoPE", "tasks learned", "parameters"),
        rows=tuple(map(row_of, order)),
        note="Level: of the score beyond the training window, over all tasks. Minus RoPE: over the tasks that both "
        "have learned. Each with its 95 % interval over tasks and seeds.",
    )


def _against(matrix: Matrix, index: Mapping[str, int], row: str) -> Value:
    """Return the difference to the reference over the tasks that both have learned."""
    if REFERENCE not in index or row == REFERENCE:
        return Value.of(None, missing="itself" if row == REFERENCE else "RoPE is missing")
    bounds = TaskDifference(matrix.scores_MSK[index[row]], matrix.scores_MSK[index[REFERENCE]]).interval()
    if bounds.n < 2:
        return Value.of(None, missing="fewer than two tasks are learned by both")
    return Value.of(bounds.estimate, "{:+.2f}", low=bounds.low, high=bounds.high, n=bounds.n)


def _reach(matrix: Matrix, order: Sequence[str]) -> Table:
    def cell(row: str, task: str) -> Value:
        n, of = matrix.n_learned(row, task)
        if not n:
            return Value.of(None, missing="not learned")
        each = sorted(trial.works_to(task) for trial in matrix.of(row) if trial.has_learned(task))
        middle = each[len(each) // 2]
        spread = f"{each[0]:,} to {each[-1]:,}" if each[0] != each[-1] else ""
        note = f"learned by {n} of {of}" if n < of else ""
        return Value(f"{middle:,}", float(middle), note=note, range=spread)

    return Table(
        name="reach",
        title=f"Longest length at which {LEARNED:.0%} of the answers are right [tokens]",
        label_columns=("method",),
        columns=tuple(matrix.tasks),
        rows=tuple(
            Row(label=(title_of(row),), values=tuple(cell(row, task) for task in matrix.tasks)) for row in order
        ),
        interval="lowest and highest seed",
        note=f"The median of the seeds that have learned the task at {matrix.lengths[0]} tokens. A dash: not learned.",
    )


def _map(matrix: Matrix, order: Sequence[str]) -> HeatMaps:
    index = {row: number for number, row in enumerate(matrix.rows)}
    bounds = [[over_seeds(matrix.scores_MSK[index[row], :, k]) for k in range(len(matrix.tasks))] for row in order]
    return HeatMaps(
        name="scores",
        title="Score beyond the training window",
        alt="A square for each method and task: the mean score of the seeds that have learned it.",
        x_label="task",
        y_label="method",
        panels=(
            HeatMap(
                title="",
                x_names=tuple(matrix.tasks),
                y_names=tuple(map(title_of, order)),
                values=tuple(tuple(each.estimate if each.n else None for each in row) for row in bounds),
                doubtful=frozenset(
                    (i, j) for i, row in enumerate(bounds) for j, each in enumerate(row) if not each.excludes(0)
                ),
            ),
        ),
        low=0.0,
        high=1.0,
        note="From 0 for guessing to 1 for every answer at every longer length; a dash: not learned. Coloured where "
        "the 95 % interval over seeds leaves 0 out.",
    )


def _curves(matrix: Matrix, task: str, order: Sequence[str]) -> Lines:
    shown = [row for row in order if matrix.n_learned(row, task)[0]]
    return Lines(
        name=f"curve-{task.replace('_', '-')}",
        title=f"{task}: {TASKS[task].meaning}" if task in TASKS else task,
        alt="The share of right answers against the length, a curve for each method that has learned the task.",
        x_label="length [tokens]",
        y_label="share of right answers",
        lines=tuple(
            Line.of_values(title_of(row), [(length, matrix.share(row, task, length)) for length in matrix.lengths])
            for row in shown
        ),
        x_log=True,
        y_limits=(0.0, 1.0),
        marks=((float(matrix.lengths[0]), "trained"),),
        interval="95 % interval over seeds",
    )


def _tasks(matrix: Matrix) -> Iterator[str]:
    any_trial = next(iter(matrix.trials.values()))
    for task in matrix.tasks:
        chances = any_trial.tasks[task].chance
        ends = " and ".join(
            f"{chance:.1%} at {length:,} tokens"
            for length, chance in list(zip(matrix.lengths, chances, strict=False))[:: max(1, len(chances) - 1)]
        )
        yield f"* {task}: {TASKS[task].meaning} By guessing: {ends}."


def _facts(matrix: Matrix) -> list[tuple[str, str]]:
    trials = list(matrix.trials.values())
    hours = sum({(trial.method, trial.seed): trial.seconds for trial in trials}.values()) / 3600
    torch = sorted({trial.made_with.get("torch", "?") for trial in trials})
    return [
        ("protocol", trials[0].protocol),
        ("trainings", f"{len({(trial.method, trial.seed) for trial in trials})}, {hours:.1f} core-hours"),
        ("made with", f"torch {', '.join(torch)}"),
    ]
