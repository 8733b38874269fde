"""Suite `temperature`: the temperature of attention under other rotary frequencies (YaRN, arXiv 2309.00071, A.2).

1/√t multiplies the rotated queries and the rotated keys, hence the scores by 1/t, in place of the temperature that the
frequencies bring (1 for all but YaRN's). A document of N predictions is read in one window and cut into segments of
`block` predictions. The change of a segment is (ppl(t) - ppl(1)) / ppl(1) (Eq. 26), ppl the exp of its mean NLL; that
of a whole document is the same of all its predictions. Means are over documents.

The points are values of 1/√t, with 1 among them. Every document is cut to document_tokens predictions, to which dynamic
frequencies adapt.

Shape legend: N documents, S segments, V values of 1/√t.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal, TypedDict

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import intervals
from coca_train.evaluation.pages import curves, document
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.models.transformer import Transformer
from coca_train.positions import scaling_of
from coca_train.positions.rope_scaling import RopeScaling, stretch, yarn_temperature
from coca_train.positions.rotary import Rotary
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
    document_tokens: Positive = Field(description="predictions of each document, in one window; YaRN: 16384 [tokens]")
    block: Positive = Field(description="length of a segment; YaRN: 2048 [tokens]")

    def __post_init__(self) -> None:
        if 1.0 not in self.scales or len(set(self.scales)) < len(self.scales):
            raise ValueError(f"scales ({self.scales}) must hold 1.0, which changes are relative to, and no value twice")


ABOUT = (
    "1/√t multiplies queries and keys after the rotation, hence the scores by 1/t, in place of the frequencies' own "
    "temperature. The change is (ppl(t) - ppl(1)) / ppl(1) of each document, mean over documents (YaRN, Eq. 26). "
    "Recommended is YaRN's 0.1 ln s + 1 (Eq. 25), s the factor of the frequencies, or of dynamic ones at this length."
)
X_LABEL, Y_LABEL = "1/√t", "change [%]"
THEIRS = Row(label=("LLaMA 7b (YaRN, A.2)", "s = 8"), theirs=True, values=(MISSING, Value("1.208", 1.208), MISSING))


class Part(TypedDict):
    """Of one document. nll: of each segment [nats]. tokens: its predictions. recommended: YaRN's 1/√t."""

    nll: list[float]
    tokens: list[int]
    recommended: float


class Result(TypedDict):
    """nll: [nats] by document and segment. tokens: predictions of each segment. recommended: YaRN's 1/√t."""

    nll: list[list[float]]
    tokens: list[int]
    recommended: float


class RowChanges:
    """How the perplexity of a model and variant changes with 1/√t, by document: of each segment, then of the whole."""

    def __init__(self, row: GridRow[Result]) -> None:
        last = row.results["1"]
        self.row, self.recommended = row, last["recommended"]
        n_S = np.asarray(last["tokens"])
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
        return Line.of_values(label, ((scale, self.value(scale, column)) for scale in self.change))

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


class Evaluator(DocumentSuite[Settings, Part, Result]):
    """Perplexity by attention temperature."""

    VERSION = 1
    AXIS = ("scales",)
    LENGTHS_FROM = "eval.document_tokens"

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        return tuple(f"{scale:g}" for scale in sorted(self.settings.scales))

    def length(self, point: Point) -> int:
        return self.settings.document_tokens

    def impossible(self, subject: Subject, point: Point, material: Prefixes) -> str:
        if len(set(subject.model.layer_types)) > 1:
            return "its layers are of several kinds, and one temperature would not be that of all rotations"
        if not isinstance(subject.model.position, Rotary):
            return f"{subject.model.position.settings.scheme} rotates nothing, and the temperature is in the rotation"
        if subject.model.position.linear:
            return f"{subject.model.position.settings.scheme} has no softmax, whose temperature this is"
        return super().impossible(subject, point, material)

    def measure(self, subject: Subject, point: Point, material: Prefixes, setup: Setup) -> dict[str, Part]:
        length, block = self.settings.document_tokens, self.settings.block
        starts = np.arange(0, length, block)
        scaling = scaling_of(subject.model.position.settings)
        assert scaling is not None, "`impossible` says so"
        rule = recommended(scaling, length)

        def keep(nll_T: np.ndarray) -> Part:
            nll_S = np.add.reduceat(nll_T, starts).tolist()
            return {"nll": nll_S, "tokens": segments(length, block), "recommended": rule}

        with attention_scale(subject.model, float(point)):
            return material.by_document(subject.model, length, setup, keep)

    def combine(self, point: Point, material: Prefixes, parts: Mapping[str, Part]) -> Result:
        first, *_ = documents = in_order(parts)
        nll = [each["nll"] for each in documents]
        return {"nll": nll, "tokens": first["tokens"], "recommended": first["recommended"]}

    def page(self, evaluation: Evaluation[Result]) -> Document:
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
                        x_label=X_LABEL,
                        y_label=Y_LABEL,
                        marks=tuple((v, f"recommended for {'; '.join(recommended[v])}") for v in sorted(recommended)),
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
                **{each.row.label: _segments(number, each) for number, each in enumerate(known, 1)},
            },
        )


def _segments(number: int, each: RowChanges) -> list[Block | str | None]:
    """Show of one row the change in each segment, and how many documents are best where."""
    return [
        curves(
            (each.line(i, name) for i, name in enumerate(each.segments)),
            name=f"temperature-segments-{number}",
            title=f"Change by segment, {each.row.label}",
            x_label=X_LABEL,
            y_label=Y_LABEL,
            marks=((each.recommended, "recommended"),),
        ),
        Table(
            name=f"temperature-counts-{number}",
            title=f"Documents with their lowest perplexity at each 1/√t, {each.row.label}",
            label_columns=(X_LABEL,),
            columns=(*each.segments, "whole"),
            rows=tuple(
                Row(label=(f"{scale:g}",), values=tuple(Value.of(count, "{}") for count in counts))
                for scale, counts in times_best(each.nll).items()
            ),
            note="By segment of the document [tokens], and for whole documents.",
        ),
    ]


@contextmanager
def attention_scale(model: Transformer, scale: float) -> Iterator[None]:
    """Give a rotary scheme this 1/√t for as long as the context lasts."""
    assert isinstance(model.position, Rotary)
    handle = model.position.rope_scaling.register_forward_hook(
        lambda module, given, spectrum: spectrum._replace(temperature=scale)
    )
    try:
        yield
    finally:
        handle.remove()


def recommended(rope_scaling: RopeScaling, length: int) -> float:
    """Return YaRN's 1/√t for these frequencies: s is their factor, or l/L of dynamic ones at this length."""
    factor, original = (getattr(rope_scaling, name, None) for name in ("factor", "original_seq_len"))
    if factor is None and original is not None:
        factor = stretch(original, length)
    return yarn_temperature(factor or 1.0)


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
