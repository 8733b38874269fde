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
from typing import Literal, TypedDict

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import Bound, intervals, summarise
from coca_train.evaluation.measures.windows import bin_ends, bin_middles, sum_bins
from coca_train.evaluation.pages import (
    best_at_the_longest,
    by_length,
    by_point,
    curves,
    document,
    table,
    training_windows,
)
from coca_train.evaluation.results import ALL, Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.evaluation.texts import digest
from coca_train.evaluation.verdict import ROUNDING
from coca_train.report.blocks import Document, Line, Value
from coca_train.statistics.pairs import Sample


def reduce_nll(nll_T: np.ndarray, block: int) -> list[float]:
    """Return what is kept of one document: the NLL of its last `block` predictions, then that of each bin of
    positions."""
    return [float(nll_T[-block:].sum()), *sum_bins(nll_T[:, None])[:, 0].tolist()]


class FirstWindows(TypedDict):
    """Documents that were read at one length. ends: bin k has the contexts ends[k - 1] + 1 ... ends[k]. loss: mean NLL
    of each bin [nats per token]. perplexity: of the last `block` predictions. low, high, ci_*: 95 % intervals over
    documents, None of one alone. last_by_document: NLL of the last predictions [nats]. predictions: a digest of
    what was predicted."""

    n_documents: int
    ends: list[int]
    loss: list[float]
    low: list[Bound]
    high: list[Bound]
    block: int
    perplexity: float
    ci_low: Bound
    ci_high: Bound
    last_by_document: list[float]
    predictions: str


def first_windows(
    documents: Sequence[Sequence[float]], length: int, block: int, predictions: str = "", seed: int = 0
) -> FirstWindows:
    """Summarise documents that `reduce_nll` made something of at this length."""
    # In float64 and by document, never as running means: ranks bring documents in any order.
    sums = np.asarray(documents, dtype=np.float64)
    n_documents, block_size = len(sums), min(block, length)
    ends = bin_ends(length)
    bins_DK2 = np.stack(np.broadcast_arrays(sums[:, 1:], np.diff(ends, prepend=0)), 2)
    low, high = intervals(bins_DK2, seed)
    last_block = summarise(np.stack([sums[:, 0], np.full(n_documents, block_size)], 1), None, seed)
    return {
        "n_documents": n_documents,
        "ends": ends.tolist(),
        "loss": (sums[:, 1:].mean(0) / np.diff(ends, prepend=0)).tolist(),
        "low": low,
        "high": high,
        "block": block_size,
        "perplexity": last_block["perplexity"],
        "ci_low": last_block["ci_low"],
        "ci_high": last_block["ci_high"],
        "last_by_document": sums[:, 0].tolist(),
        "predictions": predictions,
    }


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


class Evaluator(DocumentSuite[Settings, list[float], dict[str, FirstWindows]]):
    """Loss by position, and perplexity at growing context."""

    VERSION = 4
    SHARES = True

    def measure(self, subject: Subject, point: Point, material: Prefixes, setup: Setup) -> dict[str, list[float]]:
        """Return what `reduce_nll` keeps of each of this rank's documents."""
        return material.by_document(subject.model, int(point), setup, partial(reduce_nll, block=self.settings.block))

    def combine(self, point: Point, material: Prefixes, parts: Mapping[str, list[float]]) -> dict[str, FirstWindows]:
        """Return `first_windows` by source; the last source is the one a comparison is about."""
        length, documents = int(point), iter(in_order(parts))
        by_source = {source: list(islice(documents, len(texts))) for source, texts in material.documents.items()}
        # What a source's documents are known by, so that models are compared on the same ones.
        read = {source: {source: [d[: length + 1] for d in texts]} for source, texts in material.documents.items()}
        if len(by_source) > 1:
            by_source[ALL] = [sums for members in by_source.values() for sums in members]
            read[ALL] = {source: texts for each in read.values() for source, texts in each.items()}
        return {
            source: first_windows(members, length, self.settings.block, digest(read[source]))
            for source, members in by_source.items()
        }

    def page(self, evaluation: Evaluation[dict[str, FirstWindows]]) -> Document:
        # The text a comparison is about: all sources together, or the only one.
        rows = evaluation.reduced(lambda result: list(result.values())[-1]).rows()
        marks = training_windows(evaluation)
        losses = (
            Line.through(
                f"{row.label} (L = {max(map(int, row.results)):,})",
                zip(bin_middles(last["ends"]), last["loss"], last["low"], last["high"], strict=True),
            )
            for row in rows
            if (last := row.last)
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
            summary=best_at_the_longest(rows, growing, "At a context of {} tokens", "predicts best", "perplexity"),
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
                ],
                "Growing context": [
                    GROWING.format(block=self.settings.block),
                    curves(
                        by_length(rows, _perplexity),
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


def _perplexity(result: FirstWindows) -> Value:
    low, high, n = result["ci_low"], result["ci_high"], result["n_documents"]
    sums_U2 = np.array([(nll, result["block"]) for nll in result["last_by_document"]], float)
    sample = Sample(sums_SU2=sums_U2[None], units=result["predictions"], rounding=ROUNDING)
    return Value.of(result["perplexity"], low=low, high=high, n=n, sample=sample)
