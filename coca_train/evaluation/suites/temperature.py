"""Attention temperature under a variant's frequencies (YaRN A.2; definitions in measures/temperature.py).

The points are values of 1/√t, and 1 is always among them: changes are relative to it. Every document is cut to
document_tokens predictions and read in one window, to which dynamic frequencies adapt. Where frequencies of several
factors are measured, the best 1/√t of each is fitted against ln s, as YaRN's rule was found (Eq. 22).
"""

from collections.abc import Sequence
from functools import partial
from math import isnan, log
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import curves, document
from coca_train.evaluation.measures.perplexity import CONFIDENCE, RESAMPLES
from coca_train.evaluation.measures.temperature import (
    attention_scale,
    changes,
    factor,
    fit,
    lowest,
    recommended,
    segment_sums,
    segments,
    times_best,
)
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._one_window import Prefixes, in_order, read_longest
from coca_train.report.blocks import MISSING, Block, Document, Line, Row, Table, Value
from coca_train.statistics.answers import LEAST
from coca_train.statistics.pairs import Sample, standings

VERSION = 1
AXIS = ("scales",)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity by attention temperature."""

    suite: Literal["temperature"]
    scales: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = Field(
        description="values of 1/√t that are tried; 1.0 must be one of them"
    )
    document_tokens: Positive | Literal["stretched"] = Field(
        description="predictions of each document, in one window; YaRN: 16384; stretched: what the frequencies stretch "
        "the training window to, their factor times it [tokens]"
    )
    block: Positive = Field(description="length of a segment; YaRN: 2048 [tokens]")

    def __post_init__(self) -> None:
        if 1.0 not in self.scales or len(set(self.scales)) < len(self.scales):
            raise ValueError(f"scales ({self.scales}) must hold 1.0, which changes are relative to, and no value twice")


def points(settings: Settings, lengths: Sequence[int]) -> tuple[Point, ...]:
    return tuple(f"{scale:g}" for scale in sorted(settings.scales))


def length_of(settings: Settings, subject: Subject, position: Any) -> int:
    """Predictions of a document under these position settings [tokens]."""
    if settings.document_tokens != "stretched":
        return settings.document_tokens
    frequencies = getattr(position, "frequencies", None)
    return int(subject.training_window * (getattr(frequencies, "factor", None) or 1))


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Prefixes:
    lengths = sorted({length_of(settings, subject, each.position) for each in subject.variants.values()})
    return read_longest(subject, setup, lengths, lengths_from="eval.document_tokens")


def work(settings: Settings, subject: Subject, points: Sequence[str], material: Prefixes) -> list[float]:
    length = length_of(settings, subject, subject.model.position.settings)
    return [float(length * len(material.texts))] * len(points)


def fingerprint(material: Prefixes, point: str) -> str:
    return material.digest(material.longest)


def impossible(settings: Settings, subject: Subject, point: str, material: Prefixes) -> str:
    if len(set(subject.model.kinds)) > 1:
        return "its layers are of several kinds, and one temperature would not be that of all rotations"
    if not hasattr(subject.model.position, "frequencies"):
        return f"{subject.model.position.settings.scheme} rotates nothing, and the temperature is in the rotation"
    return material.problem(subject, length_of(settings, subject, subject.model.position.settings))


def measure(settings: Settings, subject: Subject, point: str, material: Prefixes, setup: Setup) -> dict[str, Any]:
    """This rank's documents: by index, the NLL of each segment."""
    model, length = subject.model, length_of(settings, subject, subject.model.position.settings)
    with attention_scale(model, float(point)):
        nll = material.by_document(model, length, setup, partial(segment_sums, block=settings.block))
    rule = recommended(model.position.settings.frequencies, length)
    return {"nll": nll, "tokens": segments(length, settings.block), "recommended": rule}


def combine(settings: Settings, point: str, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """nll: [nats] by document and segment. tokens: predictions of each segment. recommended: YaRN's 1/√t."""
    return {
        "nll": in_order(part["nll"] for part in parts),
        "tokens": parts[0]["tokens"],
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
    """Of one model and variant. change: by 1/√t, of each segment, then of whole documents. low, high: its interval over
    documents, NaN of one document. best: documents."""

    row: GridRow
    recommended: float
    segments: list[str]
    change: dict[float, np.ndarray]
    low: dict[float, np.ndarray]
    high: dict[float, np.ndarray]
    best: dict[float, list[int]]

    @classmethod
    def of(cls, row: GridRow) -> "RowChanges":
        nll = {float(point): np.asarray(result["nll"]) for point, result in row.results.items()}
        n_S = np.asarray(row.last["tokens"])
        names = [f"{end - n + 1:,} to {end:,}" for n, end in zip(n_S, np.cumsum(n_S), strict=True)]
        change = {scale: changes(nll[scale], nll[1.0], n_S) for scale in sorted(nll)}
        ends = {scale: _interval(nll[scale], nll[1.0], n_S) for scale in change}
        low, high = ({scale: each[end] for scale, each in ends.items()} for end in (0, 1))
        return cls(row, row.last["recommended"], names, change, low, high, times_best(nll))

    def line(self, column: int, label: str) -> Line:
        """Change [%] of one segment; -1: of whole documents."""
        return Line.through(label, ((scale, *self._percent(scale, column)) for scale in self.change))

    def _percent(self, scale: float, column: int) -> list[float | None]:
        """Change and its interval [%], None where it is not known."""
        three = (100 * float(each[scale][column]) for each in (self.change, self.low, self.high))
        return [None if isnan(value) else value for value in three]

    @property
    def whole(self) -> dict[float, Value]:
        """Change of whole documents by 1/√t [%]."""
        nll, n_S = {float(point): np.asarray(result["nll"]) for point, result in self.row.results.items()}, self.n_S
        values = {}
        for scale in self.change:
            number, low, high = self._percent(scale, -1)
            # Of each document its change, all of one weight: what the mean is of.
            sums_U2 = np.array([[100 * changes(nll[scale][[i]], nll[1.0][[i]], n_S)[-1], 1] for i in range(self.n)])
            sample = Sample(sums_SU2=sums_U2[None], units=str(self.row.name))
            values[scale] = Value.of(number, "{:+.2f} %", low=low, high=high, n=self.n, sample=sample)
        return values

    @property
    def n(self) -> int:
        """Documents."""
        return len(self.row.last["nll"])

    @property
    def n_S(self) -> np.ndarray:
        return np.asarray(self.row.last["tokens"])

    def sentence(self) -> str:
        """Which of the values tried is best, and what YaRN recommends."""
        best, tied = self.lowest
        recommended = f"YaRN recommends {self.recommended:.3f}."
        if self.n < LEAST:
            return f"{self.row.label}: inconclusive, {self.n} of the {LEAST} documents needed. {recommended}"
        value = self.whole[best]
        alike = f", not distinguishable from {min(tied):g} to {max(tied):g}" if len(tied) > 1 else ""
        return f"{self.row.label} is best at 1/√t = {best:g}{alike}: perplexity {value.text}. {recommended}"

    @property
    def lowest(self) -> tuple[float, list[float]]:
        """1/√t with the lowest mean change of whole documents, and all that cannot be told apart from it: all there
        are, of too few documents."""
        values = self.whole
        best = min(values, key=lambda scale: (float(self.change[scale][-1]), scale))
        places = standings([list(values.values())], "low")[0].best
        return best, [list(values)[place] for place in places] or list(values)


def _interval(nll_NS: np.ndarray, base_NS: np.ndarray, n_S: np.ndarray) -> np.ndarray:
    """95 % interval of `changes` over documents, a percentile bootstrap: (2, S + 1), NaN of a document alone."""
    each = np.stack([changes(nll_NS[i : i + 1], base_NS[i : i + 1], n_S) for i in range(len(nll_NS))])
    if len(each) < 2:
        return np.full((2, each.shape[1]), np.nan)
    draws = np.random.default_rng(0).integers(0, len(each), (RESAMPLES, len(each)))
    return np.quantile(each[draws].mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)


def page(settings: Settings, evaluation: Evaluation) -> Document:
    """The document; rows without a result at 1/√t = 1 have nothing to be compared with and are left out."""
    known = [RowChanges.of(row) for row in evaluation.rows() if "1" in row.results]
    recommended: dict[float, list[str]] = {}
    for each in known:
        recommended.setdefault(round(each.recommended, 6), []).append(each.row.label)
    return document(
        evaluation,
        "Attention temperature",
        at=f"1/√t from {min(settings.scales):g} to {max(settings.scales):g}",
        summary=[each.sentence() for each in known],
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
                    interval="95 % interval; of 1/√t, from the first to the last tried that cannot be told apart",
                    note="Change against 1/√t = 1. The paper shows its measured values in figures only (2 to 4).",
                ),
            ],
            "The rule": _rule(known),
            **{each.row.label: _segments(number, each) for number, each in enumerate(known, 1)},
        },
    )


RULE = (
    "YaRN found 1/√t = 0.1 ln s + 1 (Eq. 22) by fitting the 1/√t of the lowest perplexity at several s, with "
    "NTK-by-parts and no fine-tuning. Here the best is the vertex of the parabola through the lowest mean change of "
    "whole documents and its two neighbours; where the lowest is at an end of the values tried it is not known, and "
    "left out."
)


def _rule(known: Sequence[RowChanges]) -> list[Block | str | None]:
    """Of models that were measured at several factors: the best 1/√t against s, its least-squares line and YaRN's."""
    by_model: dict[str, dict[float, float]] = {}
    for each in known:
        best = lowest({scale: float(change[-1]) for scale, change in each.change.items()})
        if best is not None:
            by_model.setdefault(each.row.subject.name, {})[round(factor(each.recommended), 6)] = best
    fitted = {name: fit(best) for name, best in by_model.items() if len(best) > 1}
    if not fitted:
        return []
    every = sorted({s for name in fitted for s in by_model[name]})
    lines = [
        line
        for name, (a, b) in fitted.items()
        for line in (
            Line.through(f"{name}, best", sorted(by_model[name].items())),
            Line.through(f"{name}, {a:.3f} ln s + {b:.3f}", ((s, a * log(s) + b) for s in every)),
        )
    ]
    rule = Line.through("YaRN, 0.1 ln s + 1", ((s, 0.1 * log(s) + 1) for s in every), theirs=True)
    return [
        RULE,
        curves(
            [*lines, rule],
            name="temperature-rule",
            title="The best temperature by the factor of the frequencies",
            alt="The best 1/√t of each model against the factor s, the least-squares line through it, and YaRN's rule.",
            x_label="s",
            y_label="best 1/√t",
            x_log=True,
        ),
        Table(
            name="temperature-fit",
            title="1/√t = a ln s + b",
            label_columns=("model",),
            columns=("a", "b", "values of s"),
            rows=(
                *(
                    Row(
                        label=(name,),
                        values=(Value.of(a, "{:.3f}"), Value.of(b, "{:.3f}"), Value.of(len(by_model[name]), "{}")),
                    )
                    for name, (a, b) in fitted.items()
                ),
                Row(
                    label=("LLaMA 7b to 65b (YaRN, Eq. 22)",),
                    theirs=True,
                    values=(Value("0.1", 0.1), Value("1", 1.0), MISSING),
                ),
            ),
        ),
    ]


def _best(each: RowChanges) -> tuple[Value, ...]:
    scale, tied_ = each.lowest
    return (
        Value.of(scale, "{:g}", low=min(tied_), high=max(tied_)),
        Value.of(each.recommended, "{:.3f}"),
        each.whole[scale],
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
            note="By segment of the document [tokens], and for whole documents.",
        ),
    ]
