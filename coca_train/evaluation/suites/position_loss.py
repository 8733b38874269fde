"""Suite `position_loss`: loss by position, and the perplexity of the last tokens at growing context (YaRN B.3).

A window of L reads x_0 ... x_{L-1} of a document, positions from 0, dynamic frequencies at l = L, and predicts
x_1 ... x_L: every context from 1 to L tokens occurs once. Loss by position is the mean NLL of the predictions with
context c, over documents, in the bins of windows.py. Growing context (YaRN, arXiv 2309.00071, appendix B.3) is the
perplexity of the last `block` predictions: at L = block, 2 block ... consecutive blocks of the document, each read with
all that precedes it, by frequencies that know no more than it.

All lengths read the same documents: those with more tokens than the longest length that any document has.

Shape legend: B documents, T = L predictions, K bins of positions.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import Bound, intervals, summarise
from coca_train.evaluation.measures.windows import bin_ends, bin_middles, sum_bins
from coca_train.evaluation.pages import OTHER_TOKENS, by_length, by_point, curves, document, table, training_windows
from coca_train.evaluation.results import ALL, Evaluation, GridRow, same_tokens
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.evaluation.texts import digest
from coca_train.evaluation.verdict import ROUNDING
from coca_train.report.blocks import Document, Line, Table, Value
from coca_train.report.headlines import headline
from coca_train.statistics.pairs import Sample


class Octave(NamedTuple):
    """Mean NLL [nats per token] of the contexts first ... last, and its 95 % interval."""

    first: int
    last: int
    loss: float
    low: Bound
    high: Bound


def reduce_nll(nll_T: np.ndarray, block: int) -> list[float]:
    """Return what is kept of one document: the NLL of its last `block` predictions, then that of each bin of
    positions."""
    return [float(nll_T[-block:].sum()), *sum_bins(nll_T[:, None])[:, 0].tolist()]


def first_windows(documents: Sequence[Sequence[float]], length: int, block: int, seed: int = 0) -> dict[str, Any]:
    """Summarise `reduced` documents that were read at this length, as a result has them.

    ends: bin k has the contexts ends[k - 1] + 1 ... ends[k]. loss: mean NLL of each bin [nats per token]. octaves:
    contexts 1, 2, 3 to 4, 5 to 8 ..., the last one up to the length. perplexity: of the last `block` predictions.
    low, high, ci_low, ci_high: 95 % intervals over documents, None of one alone. *_by_document: NLL of the last
    predictions, and of each octave [nats].
    """
    # In float64 and by document, never as running means: ranks bring documents in any order.
    sums = np.asarray(documents, dtype=np.float64)
    n_documents, block_size = len(sums), min(block, length)
    ends = bin_ends(length)
    bins_DK2 = np.stack(np.broadcast_arrays(sums[:, 1:], np.diff(ends, prepend=0)), 2)
    low, high = intervals(bins_DK2, seed)
    octaves, octaves_DO2 = by_octave(ends, bins_DK2, seed)
    last_block = summarise(np.stack([sums[:, 0], np.full(n_documents, block_size)], 1), None, seed)
    return {
        "n_documents": n_documents,
        "ends": ends.tolist(),
        "loss": (sums[:, 1:].mean(0) / np.diff(ends, prepend=0)).tolist(),
        "low": low,
        "high": high,
        "octaves": octaves,
        "block": block_size,
        "perplexity": last_block.perplexity,
        "ci_low": last_block.ci_low,
        "ci_high": last_block.ci_high,
        "last_by_document": sums[:, 0].tolist(),
        "octaves_by_document": octaves_DO2[..., 0].tolist(),
    }


def by_octave(ends: np.ndarray, bins_DK2: np.ndarray, seed: int = 0) -> tuple[tuple[Octave, ...], np.ndarray]:
    """Return (octaves, octaves_DO2), the latter of each document. ends: of K bins. bins_DK2: of each document NLL and
    predictions of each."""
    # Quarter octaves end where octaves do (windows.py): each bin lies in one.
    last = [int(ends[ends <= 2**power].max()) for power in range(int(ends[-1] - 1).bit_length() + 1)]
    starts = np.searchsorted(ends, [0, *(end + 1 for end in last[:-1])])
    octaves_DO2 = np.add.reduceat(bins_DK2, starts, axis=1)
    nll_O, count_O = octaves_DO2.sum(0).T
    firsts = (1, *(end + 1 for end in last[:-1]))
    columns = zip(firsts, last, (nll_O / count_O).tolist(), *intervals(octaves_DO2, seed), strict=True)
    return tuple(Octave(*each) for each in columns), octaves_DO2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Loss by position, and perplexity at growing context."""

    suite: Literal["position_loss"]
    block: Positive = Field(description="last predictions of each length whose perplexity is shown [tokens]; YaRN: 256")


ABOUT = (
    "The position of a prediction is its context: how many tokens of the document stand before it in the window. One "
    "window is read from the beginning of each document. A curve shows context and place in the document together; "
    "both are the same for all models with one tokenizer, so compare curves at one position."
)
GROWING = (
    "At context L the model reads the first L tokens, dynamic frequencies adapt to L, and the last {block} predictions "
    "are scored (YaRN, appendix B.3). Other lengths score other tokens of the same documents."
)


class Evaluator(DocumentSuite[Settings]):
    """Loss by position, and perplexity at growing context."""

    VERSION = 3
    SHARES = True

    def measure(self, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
        """Return this rank's documents: by index, what `reduced` keeps of each."""
        return material.by_document(subject.model, point, setup, partial(reduce_nll, block=self.settings.block))

    def combine(self, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return `first_windows` by source; the last source is the one a comparison is about."""
        documents = iter(in_order(parts))
        by_source = {source: list(islice(documents, len(texts))) for source, texts in material.documents.items()}
        if len(by_source) > 1:
            by_source[ALL] = [sums for members in by_source.values() for sums in members]
        # What a source's documents are known by, so that models are compared on the same ones.
        read = {source: {source: [d[: point + 1] for d in texts]} for source, texts in material.documents.items()}
        read[ALL] = {source: texts for each in read.values() for source, texts in each.items()}
        return {
            source: first_windows(members, point, self.settings.block) | {"predictions": digest(read[source])}
            for source, members in by_source.items()
        }

    def page(self, evaluation: Evaluation) -> Document:
        # The text a comparison is about: all sources together, or the only one.
        pooled = evaluation.reduced(lambda result: list(result.values())[-1])
        rows, marks = pooled.rows(), training_windows(evaluation)
        losses = (
            Line.through(
                f"{row.label} (L = {max(map(int, row.results)):,})",
                zip(bin_middles(row.last["ends"]), *(row.last[key] for key in ("loss", "low", "high")), strict=True),
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
                        x_label="position [tokens of context]",
                        y_label="loss [nats per token]",
                        x_log=True,
                        marks=marks,
                    ),
                    _octaves(rows),
                ],
                "Growing context": [
                    GROWING.format(block=self.settings.block),
                    curves(
                        (by_length(row, lambda r: (r["perplexity"], r["ci_low"], r["ci_high"])) for row in rows),
                        name="growing-context",
                        title="Perplexity of the last tokens at growing context",
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
    """Say who predicts best at the longest length."""
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
