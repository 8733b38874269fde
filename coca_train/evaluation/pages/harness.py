"""What there is to see of the suite harness: tasks by model, every metric, what could not be asked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coca_train.evaluation.results import Cell, Evaluation, Point
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Block, Document, Row, Section, Table, Text, Value

# Table 5 of the CoCA paper (arXiv 2309.08646), measured with OpenCompass -> the task of lm-evaluation-harness.
PAPER = {
    "COPA": "copa",
    "AX_b": None,
    "AX_g": None,
    "RTE": "sglue_rte",
    "OCNLI": None,
    "CMNLI": None,
    "C3": None,
    "CSL": None,
    "EPRSTMT": None,
    "BoolQ": "boolq",
    "WiC": "wic",
    "WSC": "wsc",
    "CHID": None,
    "AFQMC": None,
    "MMLU": "mmlu",
    "CMMLU": "cmmlu",
    "C-Eval": "ceval-valid",
}
SHARES = {"acc", "acc_norm", "acc_bytes", "exact_match", "f1", "em"}  # shown in per cent
HOW = (
    "Prompts, few-shot examples, metrics and standard errors are those of lm-evaluation-harness. A choice is scored by "
    "the log-likelihood of its tokens behind the question; generations are greedy."
)


def page(evaluation: Evaluation) -> Document:
    """See report/blocks.py."""
    limit = evaluation.settings.get("limit")
    done = [cell for cell in evaluation.cells if cell.status == "done"]
    higher = [point for point in evaluation.points if _main(done, point).get("higher_is_better") is not False]
    lower = [point for point in evaluation.points if point not in higher]
    blocks: list[Block] = [Text(text=HOW)]
    if higher:
        blocks.append(_overview(evaluation, "tasks", "Tasks (higher is better)", higher, "high"))
    if lower:
        blocks.append(_overview(evaluation, "tasks-perplexity", "Tasks (lower is better)", lower, "low"))
    sections = [Section(title="Tasks", blocks=blocks)]
    if done:
        sections.append(Section(title="Every metric", blocks=[_metrics(evaluation, done)]))
    if missing := [cell for cell in evaluation.cells if cell.status != "done"]:
        lines = dict.fromkeys(f"* {cell.point}, {cell.subject}: {cell.reason or cell.status}" for cell in missing)
        sections.append(Section(title="What could not be asked", blocks=[Text(text="\n".join(lines))]))
    sections.append(Section(title="The paper's tasks", blocks=[Text(text=_coverage())]))
    asked = "all documents of each task" if limit is None else f"ONLY the first {limit:,} documents of each task"
    summary = [
        f"{len(evaluation.points)} tasks, {asked}.",
        f"{len(done)} of {len(evaluation.cells)} cells have a result.",
        f"{sum(cell.result['n_clipped'] for cell in done):,} of {sum(cell.result['n_requests'] for cell in done):,} "
        "requests were longer than the window and lost tokens on their left.",
    ]
    return Document(
        title=f"Tasks of lm-evaluation-harness: {evaluation.name}",
        summary=summary,
        sections=sections,
        facts=evaluation.facts,
        command=evaluation.command,
    )


def _main(done: Sequence[Cell], point: Point) -> Mapping[str, Any]:
    """Metric of a task in the overview, from any model that has it."""
    return next((cell.result["main"] for cell in done if cell.point == point and cell.result["main"]), {})


def _overview(evaluation: Evaluation, name: str, title: str, points: Sequence[Point], best: Any) -> Table:
    ours = tuple(
        Row(
            label=(subject.name, variant),
            values=tuple(_value(evaluation.find(subject.name, variant, point)) for point in points),
        )
        for subject, variant in evaluation.rows()
    )
    theirs = tuple(_theirs(points))
    note = "Shares in per cent, ± one standard error." if best == "high" else "Perplexities and the like, as they are."
    if theirs:
        note += " The paper's figures are OpenCompass's, whose prompts differ: they show the order of magnitude."
    columns = tuple(map(str, points))
    return Table(
        name=name,
        title=title,
        label_columns=("model", "variant"),
        columns=columns,
        rows=(*ours, *theirs),
        best=best,
        note=note,
    )


def _theirs(points: Sequence[Point]) -> Iterator[Row]:
    """The rows of table 5, where it has any of these tasks."""
    names = {task: name for name, task in PAPER.items() if task is not None}
    if not names.keys() & set(points):
        return
    printed = paper.table("table5_opencompass")
    for place, method in enumerate(printed["columns"]):
        values = tuple(_printed(printed[names[p]][place]) if p in names else MISSING for p in map(str, points))
        yield Row(label=(paper.method(method), "paper"), values=values, theirs=True)


def _printed(number: float) -> Value:
    return Value(f"{number:.1f}", float(number))


def _value(cell: Cell | None) -> Value:
    if cell is None:
        return Value(MISSING.text, note="not asked for")
    if cell.status == "out_of_memory":
        return Value("OOM", note=cell.reason)
    if cell.status != "done":
        return Value(MISSING.text, note=cell.reason)
    main = cell.result["main"]
    return _shown(main) if main else Value(MISSING.text, note="several tasks without a figure of all: see every metric")


def _shown(metric: Mapping[str, Any]) -> Value:
    scale, form = (100, "{:.1f}") if metric["metric"] in SHARES else (1, "{:.4g}")
    value, error = scale * metric["value"], metric["stderr"]
    text = form.format(value) if error is None else f"{form.format(value)} ± {form.format(scale * error)}"
    return Value(text, value, note=metric["metric"])


def _metrics(evaluation: Evaluation, done: Sequence[Cell]) -> Table:
    rows = tuple(
        Row(
            label=(cell.subject, cell.variant, task, name),
            values=(_shown(metric), *_counts(cell.result["tasks"], task)),
        )
        for cell in done
        for task, metrics in cell.result["metrics"].items()
        for name, metric in metrics.items()
    )
    return Table(
        name="metrics",
        title="Every metric",
        label_columns=("model", "variant", "task", "metric"),
        columns=("value", "documents", "of", "few-shot", "version"),
        rows=rows,
        note="A group's figure is the harness's mean over its tasks. Documents: asked, and how many there are.",
    )


def _counts(tasks: Mapping[str, Any], task: str) -> tuple[Value, ...]:
    if (one := tasks.get(task)) is None:  # a group
        return (MISSING,) * 4
    whole = (one["effective"], one["original"], one["num_fewshot"])
    return (*(Value(f"{number:,}", float(number)) for number in whole), Value(one["version"]))


def _coverage() -> str:
    lines = [f"* {name}: " + (f"`{task}`" if task else "not in lm-evaluation-harness") for name, task in PAPER.items()]
    return "The 17 tasks of the CoCA paper's table 5, and what they are called here:\n\n" + "\n".join(lines)
