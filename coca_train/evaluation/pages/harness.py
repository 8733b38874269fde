"""What there is to see of the suite harness: tasks by model, every metric, what could not be asked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from coca_train.evaluation.pages.grid_blocks import by_point, document, table
from coca_train.evaluation.results import Evaluation, Point
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Row, Table, Value

# Table 5 of the CoCA paper (arXiv 2309.08646), measured with OpenCompass -> the task of lm-evaluation-harness.
PAPER = {
    "COPA": "copa", "AX_b": None, "AX_g": None, "RTE": "sglue_rte", "OCNLI": None, "CMNLI": None, "C3": None,
    "CSL": None, "EPRSTMT": None, "BoolQ": "boolq", "WiC": "wic", "WSC": "wsc", "CHID": None, "AFQMC": None,
    "MMLU": "mmlu", "CMMLU": "cmmlu", "C-Eval": "ceval-valid",
}  # fmt: skip
SHARES = {"acc", "acc_norm", "acc_bytes", "exact_match", "f1", "em"}  # shown in per cent
HOW = (
    "Prompts, few-shot examples, metrics and standard errors are those of lm-evaluation-harness. A choice is scored by "
    "the log-likelihood of its tokens behind the question; generations are greedy."
)
COVERAGE = "The 17 tasks of the CoCA paper's table 5, and what they are called here:\n\n" + "\n".join(
    f"* {name}: " + (f"`{task}`" if task else "not in lm-evaluation-harness") for name, task in PAPER.items()
)
SEVERAL = Value(MISSING.text, note="several tasks without a figure of all: see every metric")


def page(settings: Any, evaluation: Evaluation) -> Document:
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
            f"{n_clipped:,} of {n_requests:,} requests were longer than the window and lost tokens on their left.",
        ],
        sections={
            "Tasks": [
                HOW,
                _overview(evaluation, "tasks", "Tasks (higher is better)", higher, "high"),
                _overview(evaluation, "tasks-perplexity", "Tasks (lower is better)", lower, "low"),
            ],
            "Every metric": [_metrics(evaluation) if results else None],
        },
        after={"The paper's tasks": [COVERAGE]},
    )


def _overview(
    evaluation: Evaluation, name: str, title: str, points: Sequence[Point], best: Literal["high", "low"]
) -> Table | None:
    if not points:
        return None
    theirs = tuple(_theirs(points))
    note = "Shares in per cent, ± one standard error." if best == "high" else "Perplexities and the like, as they are."
    if theirs:
        note += " The paper's figures are OpenCompass's, whose prompts differ: they show the order of magnitude."
    columns = by_point(points, lambda result: _shown(result["main"]) if result["main"] else SEVERAL)
    return table(evaluation.rows(), columns, name=name, title=title, theirs=theirs, best=best, note=note)


def _theirs(points: Sequence[Point]) -> Iterator[Row]:
    """The rows of table 5, where it has any of these tasks."""
    names = {task: name for name, task in PAPER.items() if task is not None}
    if not names.keys() & set(points):
        return
    printed = paper.table("table5_opencompass")
    for index, method in enumerate(printed["columns"]):
        numbers = [printed[names[p]][index] if p in names else None for p in map(str, points)]
        values = tuple(MISSING if n is None else Value(f"{n:.1f}", float(n)) for n in numbers)
        yield Row(label=(paper.method(method), "paper"), values=values, theirs=True)


def _shown(metric: Mapping[str, Any]) -> Value:
    scale, form = (100, "{:.1f}") if metric["metric"] in SHARES else (1, "{:.4g}")
    value, error = scale * metric["value"], metric["stderr"]
    text = form.format(value) if error is None else f"{form.format(value)} ± {form.format(scale * error)}"
    return Value(text, value, note=metric["metric"])


def _metrics(evaluation: Evaluation) -> Table:
    return Table(
        name="metrics",
        title="Every metric",
        label_columns=("model", "variant", "task", "metric"),
        columns=("value", "documents", "of", "few-shot", "version"),
        rows=tuple(
            Row(
                label=(cell.subject, cell.variant, task, name),
                values=(_shown(metric), *_counts(cell.result["tasks"].get(task))),
            )
            for cell in evaluation.cells
            for task, metrics in cell.result.get("metrics", {}).items()
            for name, metric in metrics.items()
        ),
        note="A group's figure is the harness's mean over its tasks. Documents: asked, and how many there are.",
    )


def _counts(task: Mapping[str, Any] | None) -> tuple[Value, ...]:
    if task is None:  # a group
        return (MISSING,) * 4
    numbers = (task["effective"], task["original"], task["num_fewshot"])
    return (*(Value(f"{number:,}", float(number)) for number in numbers), Value(task["version"]))
