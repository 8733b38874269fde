"""The report of suite `ruler`: score by task and length, the mean over tasks, a heat map."""

import statistics
from collections.abc import Mapping
from typing import Any

from coca_train.evaluation.measures.ruler import TASKS
from coca_train.evaluation.pages.cells import figure, not_measured, windows
from coca_train.evaluation.results import Evaluation, Measured
from coca_train.report.blocks import (
    MISSING,
    Block,
    Document,
    HeatMap,
    HeatMaps,
    Line,
    Lines,
    Row,
    Section,
    Table,
    Text,
    Value,
)

DEFINITION = (
    "A score is the share of the expected strings that the greedy answer contains, upper and lower case taken as "
    "equal, averaged over cases. The tasks are in the manner of RULER (arXiv 2404.06654) with texts of our own, so the "
    "figures compare the models here with one another, not with RULER's tables."
)


def ruler_page(evaluation: Evaluation) -> Document:
    tasks, lengths = axes(evaluation)
    scores = {(s.name, v): _scores(evaluation, s, v) for s, v in evaluation.rows()}
    asked = "\n".join(f"* `{task}`: {TASKS[task].about}, {TASKS[task].max_new_tokens} new tokens" for task in tasks)
    sections = [
        Section(
            title="Mean over tasks",
            blocks=[_curves(evaluation, scores, tasks, lengths), _means(evaluation, scores, tasks, lengths)],
        ),
        Section(
            title="Task by task",
            blocks=[*_maps(evaluation, scores, tasks, lengths), _table(evaluation, tasks, lengths)],
        ),
    ]
    sections += [
        *not_measured(evaluation),
        Section(title="Definition", blocks=[Text(text=DEFINITION), Text(text=asked)]),
    ]
    return Document(
        title=f"Tasks in the manner of RULER: {evaluation.name}",
        summary=_summary(evaluation, scores, tasks, lengths),
        sections=sections,
        facts=[*evaluation.facts, ("cases", f"{evaluation.settings['n_cases']} for each task and length")],
        command=evaluation.command,
    )


Scores = Mapping[tuple[str, int], float]  # by task and length, where measured
ByRow = Mapping[tuple[str, str], Scores]


def axes(evaluation: Evaluation) -> tuple[list[str], list[int]]:
    """Tasks and lengths of the grid, in its order."""
    pairs = [str(point).split("@") for point in evaluation.points]
    return list(dict.fromkeys(task for task, _ in pairs)), list(dict.fromkeys(int(length) for _, length in pairs))


def _scores(evaluation: Evaluation, subject: Measured, variant: str) -> Scores:
    found = {}
    for point in evaluation.points:
        cell = evaluation.find(subject.name, variant, point)
        if cell is not None and cell.status == "done":
            task, _, length = str(point).partition("@")
            found[task, int(length)] = cell.result["score"]
    return found


def _mean(scores: Scores, tasks: list[str], length: int) -> Value:
    """Over all tasks; nothing when one of them was not measured at this length, as the mean would be of others."""
    known = [scores[task, length] for task in tasks if (task, length) in scores]
    if len(known) < len(tasks):
        return Value(MISSING.text, note=f"measured on {len(known)} of {len(tasks)} tasks only")
    mean = statistics.fmean(known)
    return Value(f"{mean:.2f}", mean)


def _means(evaluation: Evaluation, scores: ByRow, tasks: list[str], lengths: list[int]) -> Table:
    return Table(
        name="ruler-mean",
        title="Mean score over all tasks by length [tokens]",
        label_columns=("model", "variant"),
        columns=tuple(f"{length:,}" for length in lengths),
        rows=tuple(
            Row(label=row, values=tuple(_mean(found, tasks, length) for length in lengths))
            for row, found in scores.items()
        ),
        best="high",
        note="Only lengths at which every task was measured have a mean.",
    )


def _curves(evaluation: Evaluation, scores: ByRow, tasks: list[str], lengths: list[int]) -> Lines:
    lines = []
    for subject, variant in evaluation.rows():
        means = {length: _mean(scores[subject.name, variant], tasks, length).number for length in lengths}
        known = {length: mean for length, mean in means.items() if mean is not None}
        if known:
            label = evaluation.label(subject, variant)
            lines.append(Line(label=label, x=tuple(map(float, known)), y=tuple(known.values())))
    return Lines(
        name="ruler-by-length",
        title="Mean score over all tasks by length",
        alt="Mean score against the length of the prompt, one curve a model and variant; the table has the figures.",
        x_label="length of the prompt [tokens]",
        y_label="mean score",
        lines=tuple(lines),
        x_log=True,
        y_limits=(0.0, 1.0),
        marks=windows(evaluation),
    )


def _table(evaluation: Evaluation, tasks: list[str], lengths: list[int]) -> Table:
    def value(subject: Measured, variant: str, point: str) -> Value:
        cell = evaluation.find(subject.name, variant, point)
        found = figure(cell, lambda result: result["score"])
        if cell is None or cell.status != "done":
            return found
        error: Any = cell.result["standard_error"]
        spread = "" if error is None else f", standard error {error:.3f}"
        return Value(found.text, found.number, f"{cell.result['n_cases']} cases{spread}")

    return Table(
        name="ruler-tasks",
        title="Score by task and length [tokens]",
        label_columns=("task", "model", "variant"),
        columns=tuple(f"{length:,}" for length in lengths),
        rows=tuple(
            Row(
                label=(task, subject.name, variant),
                values=tuple(value(subject, variant, f"{task}@{length}") for length in lengths),
            )
            for task in tasks
            for subject, variant in evaluation.rows()
        ),
    )


def _maps(evaluation: Evaluation, scores: ByRow, tasks: list[str], lengths: list[int]) -> list[Block]:
    panels = []
    for subject, variant in evaluation.rows():
        found = scores[subject.name, variant]
        within = sum(length <= subject.training_window for length in lengths)
        panels.append(
            HeatMap(
                title=evaluation.label(subject, variant),
                x_names=tuple(f"{length:,}" for length in lengths),
                y_names=tuple(tasks),
                values=tuple(tuple(found.get((task, length)) for length in lengths) for task in tasks),
                mark_after_x=within if 0 < within < len(lengths) else None,
            )
        )
    if not panels:
        return []
    return [
        HeatMaps(
            name="ruler-map",
            title="Score by task and length",
            alt="One panel a model and variant: columns are lengths, rows are tasks; the table has the figures.",
            x_label="length of the prompt [tokens]",
            y_label="task",
            panels=tuple(panels),
            low=0.0,
            high=1.0,
            note="The line marks the training window.",
        )
    ]


def _summary(evaluation: Evaluation, scores: ByRow, tasks: list[str], lengths: list[int]) -> list[str]:
    """Who is best at the longest length that has a mean."""
    for length in reversed(lengths):
        means = {
            evaluation.label(subject, variant): mean
            for subject, variant in evaluation.rows()
            if (mean := _mean(scores[subject.name, variant], tasks, length).number) is not None
        }
        if means:
            best = max(means, key=lambda label: means[label])
            n_tasks = f"{len(tasks)} tasks" if len(tasks) > 1 else tasks[0]
            return [f"In prompts of {length:,} tokens {best} is best: its mean over {n_tasks} is {means[best]:.2f}."]
    return ["No length has all its tasks measured."]
