"""The page of suite `harness`: its tasks beside the papers' figures, and every metric."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

from coca_train.evaluation.grid_blocks import by_point, document, table
from coca_train.evaluation.measures.harness_documents import evenly, main_of, sample
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Row, Table, Value
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import Z_95, wilson

# Table 5 of the CoCA paper (arXiv 2309.08646), measured with OpenCompass -> the task of lm-evaluation-harness.
PAPER = {
    "COPA": "copa", "AX_b": None, "AX_g": None, "RTE": "sglue_rte", "OCNLI": None, "CMNLI": None, "C3": None,
    "CSL": None, "EPRSTMT": None, "BoolQ": "boolq", "WiC": "wic", "WSC": "wsc", "CHID": None, "AFQMC": None,
    "MMLU": "mmlu", "CMMLU": "cmmlu", "C-Eval": "ceval-valid",
}  # fmt: skip
HERE = {task: name for name, task in PAPER.items() if task is not None}
# The others are asked by task files of one's own (eval.include_path), which have the paper's names in small letters.
ALL = {task or name.lower(): name for name, task in PAPER.items()}
ERRORS = "95 % interval: Wilson's of a task's share, else 1.96 of the harness's standard errors"
SHARES = {"acc", "acc_norm", "acc_bytes", "exact_match", "f1", "em"}  # shown in per cent
HOW = (
    "Prompts, few-shot examples, metrics and standard errors are those of lm-evaluation-harness. A choice is scored by "
    "the log-likelihood of its tokens behind the question; generations are greedy."
)
OWN_FILE = "a task file of your own, `{}` (`eval.include_path`); lm-evaluation-harness has none"
COVERAGE = "The 17 tasks of the CoCA paper's table 5, and what they are called here:\n\n" + "\n".join(
    f"* {name}: " + (f"`{task}`" if task else OWN_FILE.format(name.lower())) for name, task in PAPER.items()
)


def page(evaluation: Evaluation) -> Document:
    results = [cell.result for cell in evaluation.cells if cell.result]
    main = {cell.point: cell.result["main"] for cell in evaluation.cells if cell.result and cell.result["main"]}
    lower = [point for point in evaluation.points if main.get(point, {}).get("higher_is_better") is False]
    higher = [point for point in evaluation.points if point not in lower]
    limit = evaluation.settings.get("limit")
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
        after={"The paper's tasks": [COVERAGE if HERE.keys() & set(evaluation.points) else None]},
        facts=[("tasks are told", f"{key}: {value}") for key, value in evaluation.settings.get("metadata", {}).items()],
    )


def _read(window: int | str | None, n_clipped: int, n_requests: int) -> str:
    """What was read of what was asked, in a sentence."""
    if window == "whole":
        return f"All {n_requests:,} requests were read whole, whatever the training window."
    words = "the training window" if window in ("training", None) else f"the window of {window:,} tokens"
    return f"{n_clipped:,} of {n_requests:,} requests were longer than {words} and lost tokens on their left."


def _overview(
    evaluation: Evaluation, name: str, title: str, points: Sequence[Point], best: Literal["high", "low"]
) -> Table | None:
    if not points:
        return None
    printed = tuple(_theirs(points))
    note = "Shares in per cent." if best == "high" else "Perplexities and the like, as they are."
    if printed:
        note += " The paper's figures are OpenCompass's, whose prompts differ: they show the order of magnitude."
    columns = {name: column for point in points for name, column in by_point([point], partial(_main, point)).items()}
    if _whole(points):
        columns[f"total of these {len(HERE)}"] = partial(_total, HERE)
        columns[f"total of all {len(ALL)}"] = partial(_total, ALL)
    theirs = printed + paper.yarn_task_rows([str(point) for point in points], n_columns=len(columns))
    shown = table(
        evaluation.rows(), columns, name=name, title=title, theirs=theirs, best=best, interval=ERRORS, note=note
    )
    return shown and replace(shown, note=f"{note} {_compared(shown)}".rstrip())


def _compared(shown: Table) -> str:
    """How the figures of a task are held against each other, in a sentence; "" where no task has two."""
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


def _main(point: Point, result: Mapping[str, Any]) -> Value:
    """The figure of a task, or of a group of them."""
    return _shown(result["main"], result["tasks"], _documents(point, result))


def _documents(point: Point, result: Mapping[str, Any]) -> Sample | None:
    """What it is the mean of."""
    metrics = result["metrics"].get(point, {})
    name = main_of(metrics)
    return None if name is None else sample(result["documents"], name, metrics[name]["value"])


def _whole(points: Sequence[Point]) -> bool:
    """Whether all tasks of table 5 that there are here are among them, so that totals can be compared."""
    return HERE.keys() <= set(points)


def _total(tasks: Mapping[str, str], row: GridRow) -> Value:
    """The sum of the tasks' shares, as the last row of table 5 is [per cent]."""
    results = [row.results.get(task, {}) for task in tasks]
    main = [_shown(result["main"], result["tasks"]) for result in results if result.get("main")]
    if (n_missing := len(tasks) - len(main)) > 0:
        return Value.of(None, missing=f"{n_missing} of them have no figure")
    total, form = sum(value.number or 0.0 for value in main), "{:.1f}"
    asked = evenly([_documents(task, row.results[task]) for task in tasks])
    intervals = [value.interval for value in main if value.interval]
    if len(intervals) < len(main):
        return Value.of(total, form, sample=asked)
    half = math.hypot(*((high - low) / 2 for low, high in intervals))  # other documents each
    n = min(value.n or 0 for value in main)
    return Value.of(total, form, low=total - half, high=total + half, n=n, sample=asked)


def _theirs(points: Sequence[Point]) -> Iterator[Row]:
    """The rows of table 5, where it has any of these tasks."""
    if not ALL.keys() & set(points):
        return
    printed = paper.table("table5_opencompass")
    for index, method in enumerate(printed["columns"]):
        numbers = [printed[ALL[p]][index] if p in ALL else None for p in map(str, points)]
        if _whole(points):
            numbers += [sum(printed[name][index] for name in HERE.values()), printed["Total"][index]]
        values = tuple(Value.of(None if n is None else float(n), "{:.1f}") for n in numbers)
        yield Row(label=(paper.method(method), "paper"), values=values, theirs=True)


def _shown(metric: Mapping[str, Any] | None, tasks: Mapping[str, Any], documents: Sample | None = None) -> Value:
    """None: of a group of tasks without a figure of all. tasks: of which it is, by name, with what was asked.
    documents: what it is the mean of.

    The harness's standard error is 0 where all answers are right, or all wrong: of one task's share there is Wilson's
    interval, which a score between 0 and 1 varies no more than.
    """
    if metric is None:
        return Value.of(None, missing="several tasks without a figure of all: see every metric")
    share = metric["metric"] in SHARES or metric["metric"].isdigit()  # RULER's are named by length
    # SCROLLS gives some of them in per cent.
    scale, form = (100 if metric["value"] <= 1 else 1, "{:.1f}") if share else (1, "{:.4g}")
    value, error, n = scale * metric["value"], metric["stderr"], sum(task["effective"] for task in tasks.values())
    low, high = (None, None) if error is None else (value - Z_95 * scale * error, value + Z_95 * scale * error)
    if share and len(tasks) == 1 and n and 0 <= metric["value"] <= 1:
        low, high = (100 * end for end in wilson(metric["value"] * n, n))
    return Value.of(value, form, metric["metric"], low=low, high=high, n=n or None, sample=documents)


def _every_metric(evaluation: Evaluation) -> Table:
    return Table(
        name="metrics",
        title="Every metric",
        label_columns=("model", "variant", "task", "metric"),
        columns=("value", "documents", "of", "few-shot", "version"),
        rows=tuple(
            Row(
                label=(cell.subject, cell.variant, task, name),
                values=(_shown(metric, own), *_counts(known.get(task))),
            )
            for cell in evaluation.cells
            for known in [cell.result.get("tasks", {})]
            for task, metrics in cell.result.get("metrics", {}).items()
            for own in [{task: known[task]} if task in known else known]
            for name, metric in metrics.items()
        ),
        interval=ERRORS,
        note="A group's figure is the harness's mean over its tasks. Documents: asked, and how many there are.",
    )


def _counts(task: Mapping[str, Any] | None) -> tuple[Value, ...]:
    if task is None:  # a group
        return (MISSING,) * 4
    numbers = (task["effective"], task["original"], task["num_fewshot"])
    return (*(Value(f"{number:,}", float(number)) for number in numbers), Value(task["version"]))
