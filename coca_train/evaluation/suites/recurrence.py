"""Perplexity of a model that reads segment by segment and remembers the one before (measures/recurrence.py).

The points are reaches: how far the last token of a segment sees directly, its segment and the memory before it. A
reach of one segment is none. All reaches score the same predictions of the same documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import by_length, by_point, curves, document, table, training_windows
from coca_train.evaluation.measures.perplexity import summarise
from coca_train.evaluation.measures.recurrence import recurrent_nll
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._one_window import Prefixes, in_order, read_longest
from coca_train.report.blocks import Document, Value

VERSION = 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity by memory."""

    suite: Literal["recurrence"]
    segment: Positive | None = Field(description="length of a segment [tokens]; null: the training window")
    document_tokens: Positive = Field(description="predictions of each document [tokens]")


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Prefixes:
    return read_longest(subject, setup, [settings.document_tokens], lengths_from="eval.document_tokens")


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Prefixes) -> list[float]:
    """[pairs of tokens]"""
    return [float(settings.document_tokens * len(material.texts) * point) for point in points]


def fingerprint(material: Prefixes, point: int) -> str:
    return material.digest(material.longest)


def impossible(settings: Settings, subject: Subject, point: int, material: Prefixes) -> str:
    position, segment = subject.model.position, _segment(settings, subject)
    if not position.memory_len:
        return f"{position.settings.scheme} was trained without a memory of the text before (position.memory_len)"
    for visibility in subject.model.visibilities.values():
        keep = visibility.keep()
        if keep is not None and keep.first:
            return f"{visibility.settings.name} looks back to the first tokens of a text, and a memory holds the last"
    if point < segment:
        return f"a segment alone has {segment:,} tokens"
    return material.problem(subject, settings.document_tokens)


def measure(settings: Settings, subject: Subject, point: int, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, the sum of their NLL."""
    segment, length = _segment(settings, subject), settings.document_tokens
    nll: dict[str, list[float]] = {}
    for batch in material.share(length, setup):
        texts = [material.texts[i] for i in batch]
        nll_BT = recurrent_nll(subject.model, texts, length, segment, point - segment)
        nll |= {str(i): [float(nll_T.sum())] for i, nll_T in zip(batch, nll_BT, strict=True)}
    return {"nll": nll, "segment": segment, "trained": subject.model.position.memory_len}


def combine(settings: Settings, point: int, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Perplexity and its interval over documents. segment, memory, trained (the memory of the training): [tokens]."""
    nll_D = np.asarray(in_order(part["nll"] for part in parts))[:, 0]
    scores = summarise(np.stack([nll_D, np.full(len(nll_D), settings.document_tokens)], 1))
    segment = parts[0]["segment"]
    return asdict(scores) | {"segment": segment, "memory": point - segment, "trained": parts[0]["trained"]}


def _segment(settings: Settings, subject: Subject) -> int:
    return settings.segment or subject.training_window


ABOUT = (
    "Documents are read in segments, one behind the other, every token once. Each layer attends to the segment and to "
    "the hidden states of the memory before it, which stay as they were computed (Transformer-XL, section 3.2). A "
    "reach is segment and memory together; a reach of one segment is no memory. Perplexity by sliding windows, which "
    "remember nothing, is the suite perplexity."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    """The document; models without a memory appear with the reason."""
    rows, points = evaluation.rows(), evaluation.points

    def scored(result: Mapping[str, Any]) -> Value:
        note = f"memory {result['memory']:,}"
        low, high, n = result["ci_low"], result["ci_high"], result["n_documents"]
        return Value.of(result["perplexity"], note=note, low=low, high=high, n=n)

    known = [row for row in rows if row.results]
    return document(
        evaluation,
        "Perplexity with a memory",
        summary=[
            f"{row.label}: perplexity {value.text}{f' ({value.range})' if value.range else ''} with a memory of "
            f"{row.last['memory']:,} tokens before segments of {row.last['segment']:,} (trained with "
            f"{row.last['trained']:,})."
            for row in known
            for value in [scored(row.last)]
        ],
        sections={
            "By reach": [
                ABOUT,
                table(
                    rows,
                    by_point(points, scored),
                    name="recurrence",
                    title="Perplexity by reach, segment and memory together [tokens]",
                    best="low",
                    of_tokens=True,
                ),
                curves(
                    (by_length(row, _with_interval) for row in known),
                    name="recurrence-curves",
                    title="Perplexity by reach",
                    alt="Perplexity against the reach of segment and memory, a curve for each model.",
                    x_label="reach [tokens]",
                    y_label="perplexity",
                    x_log=True,
                    marks=training_windows(evaluation),
                ),
            ]
        },
    )


def _with_interval(result: Any) -> tuple[float | None, ...]:
    return result["perplexity"], result["ci_low"], result["ci_high"]
