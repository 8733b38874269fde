"""What there is to see of the attention temperature: changes by 1/√t, by segment, and where documents are best."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coca_train.evaluation.measures.temperature import changes, times_best
from coca_train.evaluation.pages.cells import done, not_measured
from coca_train.evaluation.results import Evaluation
from coca_train.report.blocks import Block, Document, Line, Lines, Row, Section, Table, Text, Value

ABOUT = (
    "1/√t multiplies queries and keys after the rotation, hence the scores by 1/t, in place of the frequencies' own "
    "temperature. The change is (ppl(t) - ppl(1)) / ppl(1) of each document, mean over documents (YaRN, Eq. 26). "
    "Recommended is YaRN's 0.1 ln s + 1 (Eq. 25), s the factor of the frequencies, or of dynamic ones at this length."
)
AXIS = "1/√t"


@dataclass(frozen=True)
class _Found:
    """One row: model and variant. change: by 1/√t, of each segment, then of whole documents. best: documents."""

    label: tuple[str, str]
    title: str
    tokens: tuple[int, ...]
    recommended: float
    change: dict[float, np.ndarray]
    best: dict[float, list[int]]

    def line(self, column: int, label: str) -> Line:
        """Change [%] of one segment; -1: of whole documents."""
        return Line(
            label=label, x=tuple(self.change), y=tuple(float(100 * row[column]) for row in self.change.values())
        )

    @property
    def lowest(self) -> float:
        """1/√t with the lowest mean change of whole documents."""
        return min(self.change, key=lambda scale: self.change[scale][-1])

    @property
    def segments(self) -> list[str]:
        ends = np.cumsum(self.tokens)
        return [f"{end - n + 1:,} to {end:,}" for n, end in zip(self.tokens, ends, strict=True)]


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; rows without a result at 1/√t = 1 have nothing to be compared with and are left out."""
    found = [row for row in map(lambda place: _row(evaluation, *place), evaluation.rows()) if row is not None]
    sections = [
        Section(title="Whole documents", blocks=(Text(text=ABOUT), *_whole(found), _bests(found))),
        *(Section(title=row.title, blocks=_segments(index, row)) for index, row in enumerate(found, 1)),
        *not_measured(evaluation),
    ]
    return Document(
        title=f"Attention temperature: {evaluation.name}",
        summary=[
            f"{row.title}: best at 1/√t = {row.lowest:g} ({100 * row.change[row.lowest][-1]:+.1f} % perplexity); "
            f"YaRN recommends {row.recommended:.3f}."
            for row in found
        ],
        sections=sections,
        facts=evaluation.facts,
        command=evaluation.command,
    )


def _row(evaluation: Evaluation, subject: Any, variant: str) -> _Found | None:
    cells = done(evaluation, subject, variant)
    nll = {float(point): np.asarray(cell.result["nll"]) for point, cell in cells}
    if 1.0 not in nll:
        return None
    result = cells[0][1].result
    return _Found(
        label=(subject.name, variant),
        title=evaluation.label(subject, variant),
        tokens=tuple(result["tokens"]),
        recommended=result["recommended"],
        change={scale: changes(nll[scale], nll[1.0], np.asarray(result["tokens"])) for scale in sorted(nll)},
        best=times_best(nll),
    )


def _whole(found: list[_Found]) -> list[Block]:
    if not found:
        return []
    by_value: dict[float, list[str]] = {}
    for row in found:
        by_value.setdefault(round(row.recommended, 6), []).append(row.title)
    marks = {value: f"recommended for {'; '.join(titles)}" for value, titles in by_value.items()}
    curves = Lines(
        name="temperature",
        title="Change of the perplexity by temperature",
        alt="Mean change of the perplexity of whole documents against 1/√t, one curve for each model and variant.",
        x_label=AXIS,
        y_label="change [%]",
        lines=tuple(row.line(-1, row.title) for row in found),
        marks=tuple(sorted(marks.items())),
    )
    return [curves]


def _bests(found: list[_Found]) -> Table:
    ours = [
        Row(
            label=row.label,
            values=(
                Value(f"{row.lowest:g}", row.lowest),
                Value(f"{row.recommended:.3f}", row.recommended),
                Value(f"{100 * row.change[row.lowest][-1]:+.2f} %", float(row.change[row.lowest][-1])),
            ),
        )
        for row in found
    ]
    theirs = Row(
        label=("LLaMA 7b (YaRN, A.2)", "s = 8"), theirs=True, values=(Value("–"), Value("1.208", 1.208), Value("–"))
    )
    return Table(
        name="temperature-best",
        title="The best temperature and the recommended one",
        label_columns=("model", "variant"),
        columns=("best 1/√t tried", "recommended", "change at the best"),
        rows=(*ours, theirs),
        note="Change against 1/√t = 1. The paper shows its measured values in figures only (2 to 4).",
    )


def _segments(index: int, row: _Found) -> list[Block]:
    """Of one row: the change in each segment, and how many documents are best where."""
    names = [*row.segments, "whole"]
    counts = tuple(
        Row(label=(f"{scale:g}",), values=tuple(Value(str(count), count) for count in row.best[scale]))
        for scale in row.best
    )
    curves = Lines(
        name=f"temperature-segments-{index}",
        title=f"Change by segment, {row.title}",
        alt="Mean change of the perplexity against 1/√t, one curve for each segment of the documents.",
        x_label=AXIS,
        y_label="change [%]",
        lines=tuple(row.line(i, name) for i, name in enumerate(names[:-1])),
        marks=((row.recommended, "recommended"),),
    )
    table = Table(
        name=f"temperature-counts-{index}",
        title=f"Documents with their lowest perplexity at each 1/√t, {row.title}",
        label_columns=(AXIS,),
        columns=tuple(names),
        rows=counts,
        best="high",
        note="By segment of the document [tokens], and for whole documents.",
    )
    return [curves, table]
