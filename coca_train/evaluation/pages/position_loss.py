"""What there is to see of the loss by position: curves, means by octave, perplexity at growing context."""

from typing import Any

from coca_train.evaluation.measures.first_window import by_octave
from coca_train.evaluation.measures.position_bins import middles
from coca_train.evaluation.pages.grid_blocks import by_point, curves, document, table, training_windows
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report.blocks import MISSING, Document, Line, Table, Value

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
    # The text a comparison is about: all sources together, or the only one.
    pooled = evaluation.reduced(lambda result: list(result.values())[-1])
    rows, marks = pooled.rows(), training_windows(evaluation)
    return document(
        evaluation,
        "Loss by position",
        summary=_summary(pooled),
        sections={
            "Loss by position": [
                ABOUT,
                curves(
                    (
                        Line.through(
                            f"{row.label} (L = {max(map(int, row.results)):,})",
                            zip(middles(row.last["ends"]), row.last["loss"], strict=True),
                        )
                        for row in rows
                        if row.last
                    ),
                    name="position-loss",
                    title="Loss by position in the longest window",
                    alt="Mean loss of a prediction against the tokens before it, one curve for each model and variant.",
                    x_label="position [tokens of context]",
                    y_label="loss [nats per token]",
                    x_log=True,
                    marks=marks,
                ),
                _octaves(rows),
            ],
            "Growing context": [
                GROWING.format(block=settings.block),
                curves(
                    (
                        Line.through(
                            row.label,
                            ((int(p), r["perplexity"], r["ci_low"], r["ci_high"]) for p, r in row.results.items()),
                        )
                        for row in rows
                    ),
                    name="growing-context",
                    title="Perplexity of the last tokens at growing context",
                    alt="Perplexity of the last tokens read against the length of the context, a curve for each model "
                    "and variant.",
                    x_label="context L [tokens]",
                    y_label="perplexity",
                    x_log=True,
                    y_log=True,
                    marks=marks,
                ),
                table(
                    rows,
                    by_point(evaluation.points, lambda result: result["perplexity"]),
                    name="growing-context-perplexity",
                    title="Perplexity of the last tokens at each context",
                    best="low",
                    note="Columns score different tokens: compare within a column.",
                ),
            ],
        },
    )


def _summary(pooled: Evaluation) -> list[str]:
    """Each model's best variant at the longest length."""
    sentences = []
    for subject in pooled.subjects:
        ends = [(max(row.results), row) for row in pooled.rows() if row.subject == subject and row.results]
        if ends:
            longest = max(point for point, _ in ends)
            best = min((row.last["perplexity"], row.variant) for point, row in ends if point == longest)
            sentences.append(
                f"{subject.name} reads {int(longest):,} tokens best with {best[1]}: perplexity {best[0]:.1f}."
            )
    return sentences


def _octaves(rows: list[GridRow]) -> Table | None:
    means = {row.name: by_octave(row.last["ends"], row.last["loss"]) for row in rows if row.last}
    octaves = sorted({octave for each in means.values() for octave in each})

    def value(row: GridRow, octave: tuple[int, int]) -> Value:
        mean = means.get(row.name, {}).get(octave)
        return MISSING if mean is None else Value(f"{mean:.3f}", mean)

    return table(
        rows,
        {
            f"{first:,}" if first == last else f"{first:,} to {last:,}": lambda row, octave=(first, last): value(
                row, octave
            )
            for first, last in octaves
        },
        name="position-loss-octaves",
        title="Mean loss by octave of positions [nats per token]",
        best="low",
        note="At the longest length each row was measured at.",
    )
