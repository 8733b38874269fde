"""The report of suite `ruler`: score by task and length, the mean over tasks, a heat map."""

import statistics
from collections.abc import Mapping
from typing import Any

from coca_train.evaluation.measures.ruler import TASKS
from coca_train.evaluation.pages.grid_blocks import (
    curves,
    document,
    figures,
    heading,
    heat_maps,
    table,
    training_windows,
)
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report.blocks import MISSING, Document, Line, Row, Table, Value

DEFINITION = (
    "A score is the share of the expected strings that the greedy answer contains, upper and lower case taken as "
    "equal, averaged over cases. The tasks are in the manner of RULER (arXiv 2404.06654) with texts of our own, so the "
    "figures compare the models here with one another, not with RULER's tables."
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    rows = evaluation.rows()
    pairs = [str(point).split("@") for point in evaluation.points]
    tasks, lengths = list(dict.fromkeys(task for task, _ in pairs)), list(dict.fromkeys(int(n) for _, n in pairs))
    about = "\n".join(f"* `{task}`: {TASKS[task].about}, {TASKS[task].max_new_tokens} new tokens" for task in tasks)
    return document(
        evaluation,
        "Tasks in the manner of RULER",
        summary=_summary(rows, tasks, lengths),
        sections={
            "Mean over tasks": [
                curves(
                    (Line.through(row.label, ((n, _mean(row, tasks, n).number) for n in lengths)) for row in rows),
                    name="ruler-by-length",
                    title="Mean score over all tasks by length",
                    alt="Mean score against the length of the prompt, one curve a model and variant; the table has the "
                    "figures.",
                    x_label="length of the prompt [tokens]",
                    y_label="mean score",
                    x_log=True,
                    y_limits=(0.0, 1.0),
                    marks=training_windows(evaluation),
                ),
                table(
                    rows,
                    {heading(n): lambda row, n=n: _mean(row, tasks, n) for n in lengths},
                    name="ruler-mean",
                    title="Mean score over all tasks by length [tokens]",
                    best="high",
                    note="Only lengths at which every task was measured have a mean.",
                ),
            ],
            "Task by task": [
                heat_maps(
                    rows,
                    lengths,
                    tasks,
                    lambda row, length, y: row.results.get(f"{tasks[y]}@{length}", {}).get("score"),
                    name="ruler-map",
                    title="Score by task and length",
                    alt="One panel a model and variant: columns are lengths, rows are tasks; the table has the "
                    "figures.",
                    y_label="task",
                    note="The line marks the training window.",
                ),
                _by_task(rows, tasks, lengths),
            ],
        },
        after={"Definition": [DEFINITION, about]},
        facts=[("cases", f"{evaluation.settings['n_cases']} for each task and length")],
    )


def _mean(row: GridRow, tasks: list[str], length: int) -> Value:
    """Over all tasks; nothing when one of them was not measured at this length, as the mean would be of others."""
    known = [row.results[point]["score"] for task in tasks if (point := f"{task}@{length}") in row.results]
    if len(known) < len(tasks):
        return Value(MISSING.text, note=f"measured on {len(known)} of {len(tasks)} tasks only")
    mean = statistics.fmean(known)
    return Value(f"{mean:.2f}", mean)


def _score(result: Mapping[str, Any]) -> Value:
    error = result["standard_error"]
    spread = "" if error is None else f", standard error {error:.3f}"
    return Value(f"{result['score']:.2f}", result["score"], f"{result['n_cases']} cases{spread}")


def _by_task(rows: list[GridRow], tasks: list[str], lengths: list[int]) -> Table:
    return Table(
        name="ruler-tasks",
        title="Score by task and length [tokens]",
        label_columns=("task", "model", "variant"),
        columns=tuple(map(heading, lengths)),
        rows=tuple(
            Row(label=(task, *row.name), values=figures(row, [f"{task}@{n}" for n in lengths], _score))
            for task in tasks
            for row in rows
        ),
    )


def _summary(rows: list[GridRow], tasks: list[str], lengths: list[int]) -> list[str]:
    """Who is best at the longest length that has a mean."""
    for length in reversed(lengths):
        means = {row.label: mean for row in rows if (mean := _mean(row, tasks, length).number) is not None}
        if means:
            best = max(means, key=lambda label: means[label])
            n_tasks = f"{len(tasks)} tasks" if len(tasks) > 1 else tasks[0]
            return [f"In prompts of {length:,} tokens {best} is best: its mean over {n_tasks} is {means[best]:.2f}."]
    return ["No length has all its tasks measured."]
