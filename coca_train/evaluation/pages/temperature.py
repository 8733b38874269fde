"""What there is to see of the attention temperature: changes by 1/√t, by segment, and where documents are best."""

from typing import Any, NamedTuple

import numpy as np

from coca_train.evaluation.measures.temperature import changes, times_best
from coca_train.evaluation.pages.grid_blocks import curves, document
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report.blocks import MISSING, Block, Document, Line, Row, Table, Value

ABOUT = (
    "1/√t multiplies queries and keys after the rotation, hence the scores by 1/t, in place of the frequencies' own "
    "temperature. The change is (ppl(t) - ppl(1)) / ppl(1) of each document, mean over documents (YaRN, Eq. 26). "
    "Recommended is YaRN's 0.1 ln s + 1 (Eq. 25), s the factor of the frequencies, or of dynamic ones at this length."
)
AXES: dict[str, Any] = {"x_label": "1/√t", "y_label": "change [%]"}
THEIRS = Row(label=("LLaMA 7b (YaRN, A.2)", "s = 8"), theirs=True, values=(MISSING, Value("1.208", 1.208), MISSING))


class _Changes(NamedTuple):
    """Of one model and variant. change: by 1/√t, of each segment, then of whole documents. best: documents."""

    row: GridRow
    recommended: float
    segments: list[str]
    change: dict[float, np.ndarray]
    best: dict[float, list[int]]

    def line(self, column: int, label: str) -> Line:
        """Change [%] of one segment; -1: of whole documents."""
        return Line.through(label, ((scale, float(100 * each[column])) for scale, each in self.change.items()))

    @property
    def lowest(self) -> tuple[float, float]:
        """1/√t with the lowest mean change of whole documents, and that change."""
        change, scale = min((float(each[-1]), scale) for scale, each in self.change.items())
        return scale, change


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; rows without a result at 1/√t = 1 have nothing to be compared with and are left out."""
    known = [_changes(row) for row in evaluation.rows() if "1" in row.results]
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
                    marks=_recommendations(known),
                    **AXES,
                ),
                _bests(known),
            ],
            **{each.row.label: _segments(number, each) for number, each in enumerate(known, 1)},
        },
    )


def _changes(row: GridRow) -> _Changes:
    nll = {float(point): np.asarray(result["nll"]) for point, result in row.results.items()}
    n_S = np.asarray(row.last["tokens"])
    return _Changes(
        row=row,
        recommended=row.last["recommended"],
        segments=[f"{end - n + 1:,} to {end:,}" for n, end in zip(n_S, np.cumsum(n_S), strict=True)],
        change={scale: changes(nll[scale], nll[1.0], n_S) for scale in sorted(nll)},
        best=times_best(nll),
    )


def _recommendations(known: list[_Changes]) -> tuple[tuple[float, str], ...]:
    labels: dict[float, list[str]] = {}
    for each in known:
        labels.setdefault(round(each.recommended, 6), []).append(each.row.label)
    return tuple((value, f"recommended for {'; '.join(labels[value])}") for value in sorted(labels))


def _bests(known: list[_Changes]) -> Table:
    def values(each: _Changes) -> tuple[Value, ...]:
        scale, change = each.lowest
        recommended = Value(f"{each.recommended:.3f}", each.recommended)
        return Value(f"{scale:g}", scale), recommended, Value(f"{100 * change:+.2f} %", change)

    return Table(
        name="temperature-best",
        title="The best temperature and the recommended one",
        label_columns=("model", "variant"),
        columns=("best 1/√t tried", "recommended", "change at the best"),
        rows=(*(Row(label=each.row.name, values=values(each)) for each in known), THEIRS),
        note="Change against 1/√t = 1. The paper shows its measured values in figures only (2 to 4).",
    )


def _segments(number: int, each: _Changes) -> list[Block | str | None]:
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
                Row(label=(f"{scale:g}",), values=tuple(Value(str(count), count) for count in counts))
                for scale, counts in each.best.items()
            ),
            best="high",
            note="By segment of the document [tokens], and for whole documents.",
        ),
    ]
