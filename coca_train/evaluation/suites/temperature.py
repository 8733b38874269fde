"""Attention temperature under a variant's frequencies (YaRN A.2; definitions in measures/temperature.py).

The points are values of 1/√t, and 1 is always among them: changes are relative to it. Every document is cut to
document_tokens predictions and read in one window, to which dynamic frequencies adapt.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import curves, document
from coca_train.evaluation.measures.temperature import (
    attention_scale,
    changes,
    recommended,
    segment_sums,
    segments,
    times_best,
)
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._one_window import Prefixes, in_order, read_longest
from coca_train.report.blocks import MISSING, Block, Document, Line, Row, Table, Value

VERSION = 1
AXIS = ("scales",)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity by attention temperature."""

    suite: Literal["temperature"]
    scales: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = Field(
        description="values of 1/√t that are tried; 1.0 must be one of them"
    )
    document_tokens: Positive = Field(description="predictions of each document, in one window; YaRN: 16384 [tokens]")
    block: Positive = Field(description="length of a segment; YaRN: 2048 [tokens]")

    def __post_init__(self) -> None:
        if 1.0 not in self.scales or len(set(self.scales)) < len(self.scales):
            raise ValueError(f"scales ({self.scales}) must hold 1.0, which changes are relative to, and no value twice")


def points(settings: Settings, lengths: Sequence[int]) -> tuple[Point, ...]:
    return tuple(f"{scale:g}" for scale in sorted(settings.scales))


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Prefixes:
    return read_longest(subject, setup, [settings.document_tokens], lengths_from="eval.document_tokens")


def work(settings: Settings, subject: Subject, points: Sequence[str], material: Prefixes) -> list[float]:
    return [float(settings.document_tokens * len(material.texts))] * len(points)


def fingerprint(material: Prefixes, point: str) -> str:
    return material.digest(material.longest)


def impossible(settings: Settings, subject: Subject, point: str, material: Prefixes) -> str:
    if len(set(subject.model.kinds)) > 1:
        return "its layers are of several kinds, and one temperature would not be that of all rotations"
    if not hasattr(subject.model.position, "frequencies"):
        return f"{subject.model.position.settings.scheme} rotates nothing, and the temperature is in the rotation"
    return material.problem(subject, settings.document_tokens)


def measure(settings: Settings, subject: Subject, point: str, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, the NLL of each segment."""
    model, length = subject.model, settings.document_tokens
    with attention_scale(model, float(point)):
        nll = material.by_document(model, length, setup, partial(segment_sums, block=settings.block))
    return {"nll": nll, "recommended": recommended(model.position.settings.frequencies, length)}


def combine(settings: Settings, point: str, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """nll: [nats] by document and segment. tokens: predictions of each segment. recommended: YaRN's 1/√t."""
    return {
        "nll": in_order(part["nll"] for part in parts),
        "tokens": segments(settings.document_tokens, settings.block),
        "recommended": parts[0]["recommended"],
    }


ABOUT = (
    "1/√t multiplies queries and keys after the rotation, hence the scores by 1/t, in place of the frequencies' own "
    "temperature. The change is (ppl(t) - ppl(1)) / ppl(1) of each document, mean over documents (YaRN, Eq. 26). "
    "Recommended is YaRN's 0.1 ln s + 1 (Eq. 25), s the factor of the frequencies, or of dynamic ones at this length."
)
AXES: dict[str, Any] = {"x_label": "1/√t", "y_label": "change [%]"}
THEIRS = Row(label=("LLaMA 7b (YaRN, A.2)", "s = 8"), theirs=True, values=(MISSING, Value("1.208", 1.208), MISSING))


class RowChanges(NamedTuple):
    """Of one model and variant. change: by 1/√t, of each segment, then of whole documents. best: documents."""

    row: GridRow
    recommended: float
    segments: list[str]
    change: dict[float, np.ndarray]
    best: dict[float, list[int]]

    @classmethod
    def of(cls, row: GridRow) -> "RowChanges":
        nll = {float(point): np.asarray(result["nll"]) for point, result in row.results.items()}
        n_S = np.asarray(row.last["tokens"])
        names = [f"{end - n + 1:,} to {end:,}" for n, end in zip(n_S, np.cumsum(n_S), strict=True)]
        change = {scale: changes(nll[scale], nll[1.0], n_S) for scale in sorted(nll)}
        return cls(row, row.last["recommended"], names, change, times_best(nll))

    def line(self, column: int, label: str) -> Line:
        """Change [%] of one segment; -1: of whole documents."""
        return Line.through(label, ((scale, float(100 * each[column])) for scale, each in self.change.items()))

    @property
    def lowest(self) -> tuple[float, float]:
        """1/√t with the lowest mean change of whole documents, and that change."""
        change, scale = min((float(each[-1]), scale) for scale, each in self.change.items())
        return scale, change


def page(settings: Settings, evaluation: Evaluation) -> Document:
    """The document; rows without a result at 1/√t = 1 have nothing to be compared with and are left out."""
    known = [RowChanges.of(row) for row in evaluation.rows() if "1" in row.results]
    recommended: dict[float, list[str]] = {}
    for each in known:
        recommended.setdefault(round(each.recommended, 6), []).append(each.row.label)
    return document(
        evaluation,
        "Attention temperature",
        summary=[
            f"{each.row.label}: best at 1/√t = {scale:g} ({100 * change:+.1f} % perplexity); "
            f"YaRN recommends {each.recommended:.3f}."
            for each in known
            for scale, change in [each.lowest]
        ],
        sections={
            "Whole documents": [
                ABOUT,
                curves(
                    (each.line(-1, each.row.label) for each in known),
                    name="temperature",
                    title="Change of the perplexity by temperature",
                    alt="Mean change of the perplexity of whole documents against 1/√t, one curve for each model and "
                    "variant.",
                    marks=tuple((v, f"recommended for {'; '.join(recommended[v])}") for v in sorted(recommended)),
                    **AXES,
                ),
                Table(
                    name="temperature-best",
                    title="The best temperature and the recommended one",
                    label_columns=("model", "variant"),
                    columns=("best 1/√t tried", "recommended", "change at the best"),
                    rows=(*(Row(label=each.row.name, values=_best(each)) for each in known), THEIRS),
                    note="Change against 1/√t = 1. The paper shows its measured values in figures only (2 to 4).",
                ),
            ],
            **{each.row.label: _segments(number, each) for number, each in enumerate(known, 1)},
        },
    )


def _best(each: RowChanges) -> tuple[Value, ...]:
    scale, change = each.lowest
    return (
        Value.of(scale, "{:g}"),
        Value.of(each.recommended, "{:.3f}"),
        Value(f"{100 * change:+.2f} %", change),
    )


def _segments(number: int, each: RowChanges) -> list[Block | str | None]:
    """Of one row: the change in each segment, and how many documents are best where."""
    return [
        curves(
            (each.line(i, name) for i, name in enumerate(each.segments)),
            name=f"temperature-segments-{number}",
            title=f"Change by segment, {each.row.label}",
            alt="Mean change of the perplexity against 1/√t, one curve for each segment of the documents.",
            marks=((each.recommended, "recommended"),),
            **AXES,
        ),
        Table(
            name=f"temperature-counts-{number}",
            title=f"Documents with their lowest perplexity at each 1/√t, {each.row.label}",
            label_columns=(AXES["x_label"],),
            columns=(*each.segments, "whole"),
            rows=tuple(
                Row(label=(f"{scale:g}",), values=tuple(Value.of(count, "{}") for count in counts))
                for scale, counts in each.best.items()
            ),
            best="high",
            note="By segment of the document [tokens], and for whole documents.",
        ),
    ]
