"""The page of suite `harness`: its tasks with the papers' figures, and every metric; models document by document.

The harness logs what a metric made of each document: a number (1 where the answer was right, a log-likelihood), or a
sum and what it is divided by (a log-likelihood and the words it is of). Kept is what gives the task's figure by one of
FIGURES; of other metrics (a correlation, F1 over all documents) no document has a share.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Literal, TypedDict

import numpy as np

from coca_train.evaluation.pages import document, figure, heading, table
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Row, Table, Value
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import Z_95, wilson

ERRORS = "95 % interval: Wilson's of a task's share, else 1.96 of the harness's standard errors"
SHARES = {"acc", "acc_norm", "acc_bytes", "exact_match", "f1", "em"}  # shown in per cent
HOW = (
    "Prompts, few-shot examples, metrics and standard errors are those of lm-evaluation-harness. A choice is scored by "
    "the log-likelihood of its tokens after the question; generations are greedy."
)


class Metric(TypedDict):
    """A figure of a task, or of a group of them. higher_is_better: None where the task does not say."""

    metric: str
    value: float
    stderr: float | None
    higher_is_better: bool | None


class Task(TypedDict):
    """documents: asked (effective), and how many there are (original)."""

    version: str
    num_fewshot: int
    original: int
    effective: int


class Documents(TypedDict):
    """Of one task. asked: a digest of its documents and what they want for an answer. metrics: of each one that has it
    a list by document, in the order of the harness's ids: a number, or a sum and its divisor."""

    asked: str
    metrics: "dict[str, list[float] | list[list[float]]]"


class Result(TypedDict):
    """main: the figure of the overview. metrics: all of them, by task. n_clipped: requests that lost tokens on the
    left."""

    main: Metric | None
    metrics: dict[str, dict[str, Metric]]
    documents: dict[str, Documents]
    tasks: dict[str, Task]
    n_requests: int
    n_clipped: int


def page(evaluation: Evaluation[Result]) -> Document:
    results = [cell.result for cell in evaluation.cells if cell.result]
    main = {cell.point: cell.result["main"] for cell in evaluation.cells if cell.result}
    lower = [point for point in evaluation.points if (known := main.get(point)) and known["higher_is_better"] is False]
    higher = [point for point in evaluation.points if point not in lower]
    limit, metadata = evaluation.settings.get("limit"), evaluation.settings.get("metadata", {})
    documents = "all documents of each task" if limit is None else f"ONLY the first {limit:,} documents of each task"
    n_clipped, n_requests = (sum(result[key] for result in results) for key in ("n_clipped", "n_requests"))
    return document(
        evaluation,
        "Tasks of lm-evaluation-harness",
        summary=[
            f"{len(evaluation.points)} tasks, {documents}.",
            f"{len(results)} of {len(evaluation.cells)} cells have a result.",
            _read(evaluation.settings.get("window"), n_clipped, n_requests),
        ],
        sections={
            "Tasks": [
                HOW,
                _overview(evaluation, "tasks", "Tasks (higher is better)", higher, "high"),
                _overview(evaluation, "tasks-perplexity", "Tasks (lower is better)", lower, "low"),
            ],
            "Every metric": [_every_metric(evaluation) if results else None],
        },
        facts=[("passed to tasks", f"{key}: {value}") for key, value in metadata.items()],
    )


def _read(window: int | str | None, n_clipped: int, n_requests: int) -> str:
    """Say what was read of what was asked, in a sentence."""
    if window == "whole":
        return f"All {n_requests:,} requests were read whole, whatever the training window."
    words = "the training window" if window in ("training", None) else f"the window of {window:,} tokens"
    return f"{n_clipped:,} of {n_requests:,} requests were longer than {words} and lost tokens on their left."


def _overview(
    evaluation: Evaluation[Result], name: str, title: str, points: Sequence[Point], best: Literal["high", "low"]
) -> Table | None:
    if not points:
        return None
    theirs = paper.task_rows([str(point) for point in points])
    note = "Shares in per cent." if best == "high" else "Perplexities and the like, as they are."
    if any(row.theirs for row in theirs):
        note += " OpenCompass's figures are of other prompts: they show the order of magnitude."
    columns = {heading(point): partial(_main_value, point) for point in points}
    shown = table(
        evaluation.rows(), columns, name=name, title=title, theirs=theirs, best=best, interval=ERRORS, note=note
    )
    return shown and replace(shown, note=f"{note} {_describe_comparison(shown)}".rstrip())


def _describe_comparison(shown: Table) -> str:
    """Say how the figures of a task are held against each other, in a sentence; "" where no task has two."""
    paired, apart = False, []
    for column, task in enumerate(shown.columns):
        values = [row.values[column] for row in shown.rows if not row.theirs]
        samples = [value.sample for value in values if value.number is not None]
        if len(samples) < 2:
            continue
        if not all(samples):
            apart.append(f"{task} (no figure of each document)")
        elif not all(one.pairs_with(other) for one, other in combinations(filter(None, samples), 2)):
            apart.append(f"{task} (not the same documents)")
        else:
            paired = True
    alone = f"as independent means: {', '.join(apart)}"
    if paired:
        return f"Models are compared on each document{f'; {alone}' if apart else ''}."
    return f"Models are compared {alone}." if apart else ""


def _main_value(point: Point, row: GridRow[Result]) -> Value:
    """Return the figure of a task, or of a group of them, with what it is the mean of."""

    def pick(result: Result) -> Value:
        metrics = result["metrics"].get(str(point), {})
        name = main_metric(metrics)
        documents = None if name is None else sample(result["documents"], name, metrics[name]["value"])
        return _metric_value(result["main"], result["tasks"], documents)

    return figure(row.cells.get(point), pick)


def _metric_value(metric: Metric | None, tasks: Mapping[str, Task], documents: Sample | None = None) -> Value:
    """Show a metric. metric: None of a group of tasks without a figure of all. tasks: of which it is, by name, with
    what was asked. documents: what it is the mean of.

    The harness's standard error is 0 where all answers are right, or all wrong: of one task's share there is Wilson's
    interval, which a score between 0 and 1 varies no more than.
    """
    if metric is None:
        return Value.of(None, missing="several tasks without a figure of all: see every metric")
    share = metric["metric"] in SHARES or metric["metric"].isdigit()  # RULER's are named by length
    # Some tasks give per cent.
    scale, form = (100 if metric["value"] <= 1 else 1, "{:.1f}") if share else (1, "{:.4g}")
    value, error, n = scale * metric["value"], metric["stderr"], sum(task["effective"] for task in tasks.values())
    low, high = (None, None) if error is None else (value - Z_95 * scale * error, value + Z_95 * scale * error)
    if share and len(tasks) == 1 and n and 0 <= metric["value"] <= 1:
        low, high = (100 * end for end in wilson(metric["value"] * n, n))
    return Value.of(value, form, metric["metric"], low=low, high=high, n=n or None, sample=documents)


def _every_metric(evaluation: Evaluation[Result]) -> Table:
    rows = []
    for cell in evaluation.cells:
        known = cell.result["tasks"] if cell.result else {}
        for task, metrics in cell.result["metrics"].items() if cell.result else ():
            own, of = {task: known[task]} if task in known else known, known.get(task)
            counts = (MISSING,) * 4  # of a group
            if of is not None:
                numbers = (of["effective"], of["original"], of["num_fewshot"])
                counts = (*(Value(f"{number:,}", float(number)) for number in numbers), Value(of["version"]))
            rows += [
                Row(label=(cell.subject, cell.variant, task, name), values=(_metric_value(metric, own), *counts))
                for name, metric in metrics.items()
            ]
    return Table(
        name="metrics",
        title="Every metric",
        label_columns=("model", "variant", "task", "metric"),
        columns=("value", "documents", "of", "few-shot", "version"),
        rows=tuple(rows),
        interval=ERRORS,
        note="A group's figure is the harness's mean over its tasks. Documents: asked, and how many there are.",
    )


# What makes a figure of (sign * sum over documents) / (what that is of): shares and scores, perplexities, bits.
FIGURES: tuple[tuple[int, Callable[[float], float]], ...] = (
    (1, lambda mean: mean),
    (-1, lambda mean: float(np.exp(mean))),
    (-1, lambda mean: mean / math.log(2)),
)
SAME = 1e-9  # relative: the harness adds up in another order


def metric_name(metric: str, chosen: str) -> str:
    """Name a metric. chosen: its filter, "none" where the task has one alone."""
    return metric if chosen == "none" else f"{metric} ({chosen})"


def main_metric(metrics: Mapping[str, Metric]) -> str | None:
    """Return which of a task's metrics is its figure in an overview; None where it has none."""
    return "acc" if "acc" in metrics else next(iter(metrics), None)


def by_document(log: Sequence[JsonObject], figures: Mapping[str, float]) -> Documents:
    """Return what each document adds to the figures of one task, by name. log: the harness's, an entry a document and
    filter."""
    ordered = sorted(log, key=lambda entry: entry["doc_id"])
    documents = dict.fromkeys((entry["doc_id"], entry["doc_hash"], entry["target_hash"]) for entry in ordered)
    kept: dict[str, list[float] | list[list[float]]] = {}
    for name, value in figures.items():
        named = ((metric_name(m, entry["filter"]), entry[m]) for entry in ordered for m in entry["metrics"])
        found = [each for metric, each in named if metric == name]
        if len(found) == len(documents) and (sums := _document_sums(value, found)) is not None:
            kept[name] = sums
    digest = hashlib.sha256("\n".join(map(str, documents)).encode()).hexdigest()
    return {"asked": digest, "metrics": kept}


def _document_sums(figure: float, found: Sequence[object]) -> list[float] | list[list[float]] | None:
    """Return of each document what makes this figure, the larger the larger; None: it is not made that way."""
    try:
        sums_U2 = np.array([each if isinstance(each, list | tuple) else (each, 1) for each in found], dtype=float)
    except (TypeError, ValueError):
        return None
    if sums_U2.shape != (len(found), 2) or not sums_U2[:, 1].sum():
        return None
    for sign, of_mean in FIGURES:
        with np.errstate(over="ignore"):
            made = of_mean(sign * sums_U2[:, 0].sum() / sums_U2[:, 1].sum())
        if math.isclose(made, figure, rel_tol=SAME, abs_tol=SAME):
            kept = [[_json_number(sign * a), _json_number(b)] for a, b in sums_U2.tolist()]
            return [a for a, _ in kept] if (sums_U2[:, 1] == 1).all() else kept
    return None


def _json_number(number: float) -> float | int:
    """Shorten a number as JSON has it: right and wrong are 1 and 0."""
    return int(number) if number.is_integer() else number


def sample(documents: Mapping[str, Documents], name: str, figure: float) -> Sample | None:
    """Return what a figure of one task, or of several together, is the mean of; None where that is not known.

    documents: by task, what `by_document` gave. Of several tasks the harness's mean is over all their documents, or
    over the tasks.
    """
    kept = [_task_sample(each, name) for each in documents.values()]
    if len(kept) < 2:
        return kept[0] if kept else None
    for whole in (_concatenate(kept), weigh_tasks_evenly(kept)):
        if whole is not None and math.isclose(_mean(whole), figure, rel_tol=SAME, abs_tol=SAME):
            return whole
    return None


def weigh_tasks_evenly(samples: Sequence[Sample | None]) -> Sample | None:
    """Return the sample of the mean over tasks, each of which counts as much whatever its documents; None where one is
    not known."""
    weighed = [each and replace(each, sums_SU2=each.sums_SU2 / each.sums_SU2[..., 1].sum()) for each in samples]
    return _concatenate(weighed)


def _concatenate(samples: Sequence[Sample | None]) -> Sample | None:
    known = [each for each in samples if each is not None]
    if not known or len(known) < len(samples):
        return None
    units = " ".join(each.units for each in known)
    return Sample(sums_SU2=np.concatenate([each.sums_SU2 for each in known], 1), units=units)


def _task_sample(documents: Documents, name: str) -> Sample | None:
    if (found := documents["metrics"].get(name)) is None:
        return None
    sums_U2 = [each if isinstance(each, list) else (each, 1) for each in found]
    return Sample(sums_SU2=np.array(sums_U2, dtype=float)[None], units=f"{name} {documents['asked']}")


def _mean(whole: Sample) -> float:
    sum_, divisor = whole.sums_SU2[0].sum(0)
    return float(sum_ / divisor)
