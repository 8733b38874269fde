"""What there is to see of the loss by position: curves, means by octave, perplexity at growing context."""

from dataclasses import replace
from typing import Any

from coca_train.evaluation.measures.first_window import by_octave
from coca_train.evaluation.measures.positions import middles
from coca_train.evaluation.pages.cells import done, figure, line, not_measured, rows, windows
from coca_train.evaluation.results import Evaluation, Measured
from coca_train.report.blocks import Document, Line, Lines, Row, Section, Table, Text, Value

ABOUT = (
    "The position of a prediction is its context: how many tokens of the document stand before it in the window. One "
    "window is read from the beginning of each document. A curve shows context and place in the document together; "
    "both are the same for all models with one tokenizer, so compare curves at one position."
)
GROWING = (
    "At context L the model reads the first L tokens, dynamic frequencies adapt to L, and the last {block} predictions "
    "are scored (YaRN, appendix B.3). Other lengths score other tokens of the same documents."
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; what could not be measured appears with its reason."""
    growing = Text(text=GROWING.format(block=settings.block))
    return Document(
        title=f"Loss by position: {evaluation.name}",
        summary=_summary(evaluation),
        sections=(
            Section(title="Loss by position", blocks=(Text(text=ABOUT), _curves(evaluation), _octaves(evaluation))),
            Section(title="Growing context", blocks=(growing, _growing(evaluation), _perplexities(evaluation))),
            *not_measured(evaluation),
        ),
        facts=evaluation.facts,
        command=evaluation.command,
    )


def _pooled(result: Any) -> Any:
    """The text a comparison is about: all sources together, or the only one."""
    return list(result.values())[-1]


def _summary(evaluation: Evaluation) -> list[str]:
    """Each model's best variant at the longest length."""
    found = []
    for subject in evaluation.subjects:
        ends = [(variant, cells[-1]) for variant in subject.variants if (cells := done(evaluation, subject, variant))]
        if ends:
            longest = max(int(point) for _, (point, _) in ends)
            ranked = [(_pooled(cell.result)["perplexity"], name) for name, (point, cell) in ends if point == longest]
            perplexity, variant = min(ranked)
            found.append(f"{subject.name} reads {longest:,} tokens best with {variant}: perplexity {perplexity:.1f}.")
    return found


def _curves(evaluation: Evaluation) -> Lines:
    lines = []
    for subject, variant in evaluation.rows():
        if cells := done(evaluation, subject, variant):
            point, cell = cells[-1]
            result = _pooled(cell.result)
            label = f"{evaluation.label(subject, variant)} (L = {int(point):,})"
            lines.append(Line(label=label, x=middles(result["ends"]), y=tuple(result["loss"])))
    return Lines(
        name="position-loss",
        title="Loss by position in the longest window",
        alt="Mean loss of a prediction against the tokens before it, one curve for each model and variant.",
        x_label="position [tokens of context]",
        y_label="loss [nats per token]",
        lines=tuple(lines),
        x_log=True,
        marks=windows(evaluation),
    )


def _octaves(evaluation: Evaluation) -> Table:
    found = {}
    for subject, variant in evaluation.rows():
        if cells := done(evaluation, subject, variant):
            result = _pooled(cells[-1][1].result)
            found[subject.name, variant] = by_octave(result["ends"], result["loss"])
    columns = sorted({octave for means in found.values() for octave in means})

    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        means = found.get((subject.name, variant), {})
        return tuple(Value(f"{means[o]:.3f}", means[o]) if o in means else Value("–") for o in columns)

    return Table(
        name="position-loss-octaves",
        title="Mean loss by octave of positions [nats per token]",
        label_columns=("model", "variant"),
        columns=tuple(f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in columns),
        rows=rows(evaluation, values),
        best="low",
        note="At the longest length each row was measured at.",
    )


def _growing(evaluation: Evaluation) -> Lines:
    lines = []
    for subject, variant in evaluation.rows():
        curve, low, high = (
            line(evaluation, subject, variant, lambda result, key=key: _pooled(result)[key])
            for key in ("perplexity", "ci_low", "ci_high")
        )
        if curve is not None:
            if low is not None and high is not None:  # a single document has no interval
                curve = replace(curve, low=low.y, high=high.y)
            lines.append(curve)
    return Lines(
        name="growing-context",
        title="Perplexity of the last tokens at growing context",
        alt="Perplexity of the last tokens read against the length of the context, a curve for each model and variant.",
        x_label="context L [tokens]",
        y_label="perplexity",
        lines=tuple(lines),
        x_log=True,
        y_log=True,
        marks=windows(evaluation),
    )


def _perplexities(evaluation: Evaluation) -> Table:
    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        cells = (evaluation.find(subject.name, variant, point) for point in evaluation.points)
        return tuple(figure(cell, lambda result: _pooled(result)["perplexity"]) for cell in cells)

    found: tuple[Row, ...] = rows(evaluation, values)
    return Table(
        name="growing-context-perplexity",
        title="Perplexity of the last tokens at each context",
        label_columns=("model", "variant"),
        columns=tuple(f"{point:,}" for point in evaluation.points),
        rows=found,
        best="low",
        note="Columns score different tokens: compare within a column.",
    )
