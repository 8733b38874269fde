"""Suite `temperature`: the temperature of attention under other rotary frequencies (YaRN, arXiv 2309.00071, A.2).

1/√t multiplies the rotated queries and the rotated keys, hence the scores by 1/t, in place of the temperature that the
frequencies bring (1 for all but YaRN's). A document of N predictions is read in one window and cut into segments of
`block` predictions. The change of a segment is (ppl(t) - ppl(1)) / ppl(1) (Eq. 26), ppl the exp of its mean NLL; that
of a whole document is the same of all its predictions. Means are over documents.

The rule itself (Eq. 22) was found by a fit: the best 1/√t of whole documents at several s, against ln s. `lowest` is
the vertex of the parabola through the lowest mean change and its two neighbours, `fit` the least-squares line.

The points are values of 1/√t, with 1 among them. Every document is cut to document_tokens predictions, to which dynamic
frequencies adapt.

Shape legend: N documents, S segments, V values of 1/√t.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import intervals
from coca_train.evaluation.pages import curves, document
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order, read_longest
from coca_train.positions import scaling_of
from coca_train.positions.rope_scaling import stretch, yarn_temperature
from coca_train.report.blocks import MISSING, Block, Document, Line, Row, Table, Value
from coca_train.statistics.answers import LEAST
from coca_train.statistics.pairs import Sample, standings


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


ABOUT = (
    "1/√t multiplies queries and keys after the rotation, hence the scores by 1/t, in place of the frequencies' own "
    "temperature. The change is (ppl(t) - ppl(1)) / ppl(1) of each document, mean over documents (YaRN, Eq. 26). "
    "Recommended is YaRN's 0.1 ln s + 1 (Eq. 25), s the factor of the frequencies, or of dynamic ones at this length."
)
AXES: dict[str, Any] = {"x_label": "1/√t", "y_label": "change [%]"}
THEIRS = Row(label=("LLaMA 7b (YaRN, A.2)", "s = 8"), theirs=True, values=(MISSING, Value("1.208", 1.208), MISSING))


class RowChanges:
    """How the perplexity of a model and variant changes with 1/√t, by document: of each segment, then of the whole."""

    def __init__(self, row: GridRow) -> None:
        self.row, self.recommended = row, row.last["recommended"]
        n_S = np.asarray(row.last["tokens"])
        self.segments = [f"{end - n + 1:,} to {end:,}" for n, end in zip(n_S, np.cumsum(n_S), strict=True)]
        self.nll = {float(point): np.asarray(result["nll"]) for point, result in row.results.items()}
        # Columns are the segments and the whole [%].
        self.change = {v: 100 * changes(self.nll[v], self.nll[1.0], n_S) for v in sorted(self.nll)}
        self.whole = {scale: self.value(scale, -1) for scale in self.change}

    def value(self, scale: float, column: int) -> Value:
        """Return the mean change of one segment [%] with its interval over documents; -1: of whole documents."""
        # All documents have one weight: what the mean is of.
        sums_U2 = np.stack(np.broadcast_arrays(self.change[scale][:, column], 1.0), 1)
        (low,), (high,) = intervals(sums_U2[:, None])
        sample = Sample(sums_SU2=sums_U2[None], units=str(self.row.name))
        return Value.of(float(sums_U2[:, 0].mean()), "{:+.2f} %", low=low, high=high, n=len(sums_U2), sample=sample)

    def line(self, column: int, label: str) -> Line:
        """Draw the change of one segment [%]; -1: of whole documents."""
        values = ((scale, self.value(scale, column)) for scale in self.change)
        return Line.through(label, ((scale, value.number, value.low, value.high) for scale, value in values))

    def best(self) -> tuple[float, list[float]]:
        """Return 1/√t with the lowest mean change of whole documents, and all that cannot be told apart from it: all
        there are, of too few documents."""
        best = min(self.whole, key=lambda scale: (self.whole[scale].number or 0.0, scale))
        places = standings([list(self.whole.values())], "low")[0].best
        return best, [list(self.whole)[place] for place in places] or list(self.whole)

    def best_row(self) -> Row:
        """Return the best value tried, what is recommended, and the change at the best."""
        best, tied = self.best()
        values = Value.of(best, "{:g}", low=min(tied), high=max(tied)), Value.of(self.recommended, "{:.3f}")
        return Row(label=self.row.name, values=(*values, self.whole[best]))

    def sentence(self) -> str:
        """Say which of the values tried is best, and what YaRN recommends."""
        best, tied = self.best()
        recommended, n = f"YaRN recommends {self.recommended:.3f}.", self.whole[best].n or 0
        if n < LEAST:
            return f"{self.row.label}: inconclusive, {n} of the {LEAST} documents needed. {recommended}"
        alike = f", not distinguishable from {min(tied):g} to {max(tied):g}" if len(tied) > 1 else ""
        return f"{self.row.label} is best at 1/√t = {best:g}{alike}: perplexity {self.whole[best].text}. {recommended}"


class Evaluator(DocumentSuite[Settings]):
    """Perplexity by attention temperature."""

    VERSION = 1
    AXIS = ("scales",)

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        return tuple(f"{scale:g}" for scale in sorted(self.settings.scales))

    def length_of(self, subject: Subject, position: Any) -> int:
        """Return the predictions of a document under these position settings [tokens]."""
        if self.settings.document_tokens != "stretched":
            return self.settings.document_tokens
        rope_scaling = getattr(position, "rope_scaling", None)
        return int(subject.training_window * (getattr(rope_scaling, "factor", None) or 1))

    def prepare(self, subject: Subject, setup: Setup) -> Prefixes:
        lengths = sorted({self.length_of(subject, each.position) for each in subject.variants.values()})
        return read_longest(subject, setup, lengths, lengths_from="eval.document_tokens")

    def work(self, subject: Subject, points: Sequence[str], material: Prefixes) -> list[float]:
        length = self.length_of(subject, subject.model.position.settings)
        return [float(length * len(material.texts))] * len(points)

    def fingerprint(self, material: Prefixes, point: str) -> str:
        return material.digest(material.longest)

    def impossible(self, subject: Subject, point: str, material: Prefixes) -> str:
        if len(set(subject.model.layer_types)) > 1:
            return "its layers are of several kinds, and one temperature would not be that of all rotations"
        if not hasattr(subject.model.position, "rope_scaling"):
            return f"{subject.model.position.settings.scheme} rotates nothing, and the temperature is in the rotation"
        return material.problem(subject, self.length_of(subject, subject.model.position.settings))

    def measure(self, subject: Subject, point: str, material: Prefixes, setup: Setup) -> dict[str, Any]:
        """Return this rank's documents: by index, the NLL of each segment."""
        model, length = subject.model, self.length_of(subject, subject.model.position.settings)
        starts = np.arange(0, length, self.settings.block)
        with attention_scale(model, float(point)):
            nll = material.by_document(model, length, setup, lambda nll_T: np.add.reduceat(nll_T, starts).tolist())
        rule = recommended(scaling_of(model.position.settings), length)
        return {"nll": nll, "tokens": segments(length, self.settings.block), "recommended": rule}

    def combine(self, point: str, material: Prefixes, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return nll: [nats] by document and segment. tokens: predictions of each segment. recommended: YaRN's 1/√t."""
        return parts[0] | {"nll": in_order(part["nll"] for part in parts)}

    def page(self, evaluation: Evaluation) -> Document:
        """Return the document; rows without a result at 1/√t = 1 have nothing to be compared with and are left out."""
        known = [RowChanges(row) for row in evaluation.rows() if "1" in row.results]
        recommended: dict[float, list[str]] = {}
        for each in known:
            recommended.setdefault(round(each.recommended, 6), []).append(each.row.label)
        return document(
            evaluation,
            "Attention temperature",
            at=f"1/√t from {min(self.settings.scales):g} to {max(self.settings.scales):g}",
            summary=[each.sentence() for each in known],
            sections={
                "Whole documents": [
                    ABOUT,
                    curves(
                        (each.line(-1, each.row.label) for each in known),
                        name="temperature",
                        title="Change of the perplexity by temperature",
                        marks=tuple((v, f"recommended for {'; '.join(recommended[v])}") for v in sorted(recommended)),
                        **AXES,
                    ),
                    Table(
                        name="temperature-best",
                        title="The best temperature and the recommended one",
                        label_columns=("model", "variant"),
                        columns=("best 1/√t tried", "recommended", "change at the best"),
                        rows=(*(each.best_row() for each in known), THEIRS),
                        interval="95 % interval; of 1/√t, from the first to the last tried that is not distinguishable",
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
    """Show of models that were measured at several factors the best 1/√t against s, its least-squares line and
    YaRN's."""
    by_model: dict[str, dict[float, float]] = {}
    for each in known:
        best = lowest({scale: value.number or 0.0 for scale, value in each.whole.items()})
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
            Line.through(f"{name}, {a:.3f} ln s + {b:.3f}", ((s, a * math.log(s) + b) for s in every)),
        )
    ]
    rule = Line.through("YaRN, 0.1 ln s + 1", ((s, 0.1 * math.log(s) + 1) for s in every), theirs=True)
    return [
        RULE,
        curves(
            [*lines, rule],
            name="temperature-rule",
            title="The best temperature by the factor of the frequencies",
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


def _segments(number: int, each: RowChanges) -> list[Block | str | None]:
    """Show of one row the change in each segment, and how many documents are best where."""
    return [
        curves(
            (each.line(i, name) for i, name in enumerate(each.segments)),
            name=f"temperature-segments-{number}",
            title=f"Change by segment, {each.row.label}",
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
                for scale, counts in times_best(each.nll).items()
            ),
            note="By segment of the document [tokens], and for whole documents.",
        ),
    ]


@contextmanager
def attention_scale(model: Any, scale: float) -> Iterator[None]:
    """Give a rotary scheme this 1/√t for as long as the context lasts."""
    handle = model.position.rope_scaling.register_forward_hook(
        lambda module, given, spectrum: spectrum._replace(temperature=scale)
    )
    try:
        yield
    finally:
        handle.remove()


def recommended(rope_scaling: Any, length: int) -> float:
    """Return YaRN's 1/√t for these frequencies (their Settings): s is their factor, or l/L of dynamic ones at this
    length."""
    factor = getattr(rope_scaling, "factor", None)
    if factor is None and hasattr(rope_scaling, "original_seq_len"):
        factor = stretch(rope_scaling.original_seq_len, length)
    return yarn_temperature(factor or 1.0)


def factor(recommendation: float) -> float:
    """Return the s for which YaRN recommends this 1/√t."""
    return math.exp((recommendation - 1) / 0.1)


def lowest(changes: Mapping[float, float]) -> float | None:
    """Return 1/√t where the change is lowest, between the values that were tried; None where that is the first or the
    last of them, which says only that the best lies beyond."""
    scales = sorted(changes)
    at = min(range(len(scales)), key=lambda index: changes[scales[index]])
    if not 0 < at < len(scales) - 1:
        return None
    around = scales[at - 1 : at + 2]
    curvature, slope, _ = np.polyfit(np.array(around) - scales[at], [changes[scale] for scale in around], 2)
    return scales[at] - float(slope / (2 * curvature)) if curvature > 0 else scales[at]


def fit(best: Mapping[float, float]) -> tuple[float, float]:
    """Return (a, b) of 1/√t = a ln s + b, by least squares over the best 1/√t by s, two of them at least."""
    slope, intercept = np.polyfit(np.log(list(best)), list(best.values()), 1)
    return float(slope), float(intercept)


def segments(n_predictions: int, block: int) -> list[int]:
    """Return the predictions in each segment."""
    whole, rest = divmod(n_predictions, block)
    return [block] * whole + [rest] * (rest > 0)


def changes(nll_NS: np.ndarray, base_NS: np.ndarray, n_S: np.ndarray) -> np.ndarray:
    """Return the relative change of the perplexity by document, of each segment, then of the whole: (N, S + 1)."""

    def with_whole(x: np.ndarray) -> np.ndarray:
        return np.concatenate((x, x.sum(-1, keepdims=True)), -1)

    return np.expm1(with_whole(nll_NS - base_NS) / with_whole(n_S))


def times_best(nll: Mapping[float, np.ndarray]) -> dict[float, list[int]]:
    """Return by 1/√t, how many documents have their lowest NLL there: in each segment, then on the whole."""
    scales = sorted(nll)
    nll_VNS = np.stack([np.concatenate((nll[v], nll[v].sum(1, keepdims=True)), 1) for v in scales])
    best_NS = nll_VNS.argmin(0)
    return {scale: (best_NS == index).sum(0).tolist() for index, scale in enumerate(scales)}
