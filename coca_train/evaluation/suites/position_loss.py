"""Loss by position, and perplexity at growing context (YaRN B.3; definitions in measures/first_window.py).

A cell reads the first L tokens of every document in one window, L being its length of the grid. All lengths read the
same documents: those with more tokens than the longest length that any document has. `all`: all sources together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import (
    OTHER_TOKENS,
    by_length,
    by_point,
    curves,
    document,
    table,
    training_windows,
)
from coca_train.evaluation.measures.first_window import first_windows, reduced
from coca_train.evaluation.measures.reach import ROUNDING
from coca_train.evaluation.measures.windows import middles
from coca_train.evaluation.results import ALL, Evaluation, GridRow, same_tokens
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._one_window import Prefixes, in_order
from coca_train.evaluation.suites._one_window import fingerprint as fingerprint
from coca_train.evaluation.suites._one_window import prepare as prepare
from coca_train.evaluation.suites._one_window import work as work
from coca_train.evaluation.texts import digest
from coca_train.report.blocks import Document, Line, Table, Value
from coca_train.report.headlines import headline
from coca_train.statistics.pairs import Sample

VERSION = 3
SHARES = True


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Loss by position, and perplexity at growing context."""

    suite: Literal["position_loss"]
    block: Positive = Field(description="last predictions of each length whose perplexity is shown [tokens]; YaRN: 256")


def impossible(settings: Settings, subject: Subject, point: int, material: Prefixes) -> str:
    return material.problem(subject, point)


def measure(settings: Settings, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, what first_window.reduced keeps of each."""
    return material.by_document(subject.model, point, setup, partial(reduced, block=settings.block))


def combine(settings: Settings, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By source, FirstWindows as plain JSON; the last source is the one a comparison is about."""
    documents = iter(in_order(parts))
    by_source = {source: list(islice(documents, len(texts))) for source, texts in material.documents.items()}
    if len(by_source) > 1:
        by_source[ALL] = [sums for members in by_source.values() for sums in members]
    # What a source's documents are known by, so that models are compared on the same ones.
    read = {source: {source: [d[: point + 1] for d in texts]} for source, texts in material.documents.items()}
    read[ALL] = {source: texts for each in read.values() for source, texts in each.items()}
    return {
        source: asdict(first_windows(members, point, settings.block)) | {"predictions": digest(read[source])}
        for source, members in by_source.items()
    }


ABOUT = (
    "The position of a prediction is its context: how many tokens of the document stand before it in the window. One "
    "window is read from the beginning of each document. A curve shows context and place in the document together; "
    "both are the same for all models with one tokenizer, so compare curves at one position."
)
GROWING = (
    "At context L the model reads the first L tokens, dynamic frequencies adapt to L, and the last {block} predictions "
    "are scored (YaRN, appendix B.3). Other lengths score other tokens of the same documents."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    # The text a comparison is about: all sources together, or the only one.
    pooled = evaluation.reduced(lambda result: list(result.values())[-1])
    rows, marks = pooled.rows(), training_windows(evaluation)
    losses = (
        Line.through(
            f"{row.label} (L = {max(map(int, row.results)):,})",
            zip(middles(row.last["ends"]), *(row.last[key] for key in ("loss", "low", "high")), strict=True),
        )
        for row in rows
        if row.last
    )
    growing = table(
        rows,
        by_point(evaluation.points, _perplexity),
        name="growing-context-perplexity",
        title="Perplexity of the last tokens at each context",
        best="low",
        of_tokens=True,
        note="Columns score different tokens: compare within a column.",
    )
    return document(
        evaluation,
        "Loss by position",
        summary=_summary(rows, growing),
        sections={
            "Loss by position": [
                ABOUT,
                curves(
                    losses,
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
                    (by_length(row, lambda r: (r["perplexity"], r["ci_low"], r["ci_high"])) for row in rows),
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
                growing,
            ],
        },
    )


def _summary(rows: list[GridRow], growing: Table | None) -> list[str]:
    """Who predicts best at the longest length."""
    if growing is None:
        return []
    known = [i for i in range(len(growing.columns)) if any(row.values[i].number is not None for row in growing.rows)]
    if not known or not same_tokens(row.subject for row in rows if row.results):
        return [OTHER_TOKENS] if known else []
    where = f"At a context of {growing.columns[known[-1]]} tokens"
    return [headline(growing, known[-1], [row.label for row in rows], where, "predicts best", "perplexity")]


def _perplexity(result: Mapping[str, Any]) -> Value:
    sums_U2 = np.array([[nll, result["block"]] for nll in result["last_by_document"]])
    sample = Sample(sums_SU2=sums_U2[None], units=result["predictions"], rounding=ROUNDING)
    ends = {"low": result["ci_low"], "high": result["ci_high"]}
    return Value.of(result["perplexity"], **ends, n=result["n_documents"], sample=sample)


def _octaves(rows: list[GridRow]) -> Table | None:
    known = {row.name: {(o[0], o[1]): (i, o) for i, o in enumerate(row.last["octaves"])} for row in rows if row.last}
    octaves = sorted({octave for each in known.values() for octave in each})

    def mean(row: GridRow, octave: tuple[int, int]) -> Value:
        if octave not in known.get(row.name, {}):
            return Value.of(None)
        i, (first, last, loss, low, high) = known[row.name][octave]
        sums_U2 = np.array([[nll[i], last - first + 1] for nll in row.last["octaves_by_document"]])
        sample = Sample(sums_SU2=sums_U2[None], units=row.last["predictions"], rounding=ROUNDING)
        return Value.of(loss, "{:.3f}", low=low, high=high, n=row.last["n_documents"], sample=sample)

    return table(
        rows,
        {
            f"{first:,}" if first == last else f"{first:,} to {last:,}": partial(mean, octave=(first, last))
            for first, last in octaves
        },
        name="position-loss-octaves",
        title="Mean loss by octave of positions [nats per token]",
        best="low",
        of_tokens=True,
        note="At the longest length each row was measured at.",
    )
