"""Cells as figures of a table and points of a curve; what every page needs."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coca_train.evaluation.results import Cell, Evaluation, Measured, Point
from coca_train.report.blocks import Line, Row, Section, Text, Value

WORDS = {"out_of_memory": "OOM", "impossible": "–"}

Pick = Callable[[Mapping[str, Any]], float | None]


def figure(cell: Cell | None, pick: Pick, form: str = "{:.2f}") -> Value:
    """What `pick` finds in a cell that is done; otherwise why there is nothing."""
    if cell is None:
        return Value("–", note="not asked for")
    if cell.status != "done":
        return Value(WORDS[cell.status], note=cell.reason)
    number = pick(cell.result)
    return Value("–", note="nothing to count") if number is None else Value(form.format(number), number)


def rows(evaluation: Evaluation, values: Callable[[Measured, str], tuple[Value, ...]]) -> tuple[Row, ...]:
    """One row a model and variant."""
    return tuple(
        Row(label=(subject.name, variant), values=values(subject, variant)) for subject, variant in evaluation.rows()
    )


def line(evaluation: Evaluation, subject: Measured, variant: str, pick: Pick) -> Line | None:
    """A curve over the grid's lengths; None where nothing was measured."""
    found = [(int(point), pick(cell.result)) for point, cell in done(evaluation, subject, variant)]
    known = [(x, y) for x, y in found if y is not None]
    if not known:
        return None
    x, y = zip(*known, strict=True)
    return Line(label=evaluation.label(subject, variant), x=tuple(map(float, x)), y=y)


def done(evaluation: Evaluation, subject: Measured, variant: str) -> list[tuple[Point, Cell]]:
    """The cells of a row that have a result, in the order of the points."""
    cells = ((point, evaluation.find(subject.name, variant, point)) for point in evaluation.points)
    return [(point, cell) for point, cell in cells if cell is not None and cell.status == "done"]


def not_measured(evaluation: Evaluation) -> tuple[Section, ...]:
    """What is missing and why; nothing when all is there."""
    lines = evaluation.absences()
    if not lines:
        return ()
    return (Section(title="Not measured", blocks=(Text(text="\n".join(f"* {line}" for line in lines)),)),)


def file_names(names: Sequence[str]) -> dict[str, str]:
    """For each name a part of a block's name: letters, digits and dashes, different for different names."""
    plain = {name: re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names}
    return {
        name: text if text and list(plain.values()).count(text) == 1 else f"{text}-{number}".strip("-")
        for number, (name, text) in enumerate(plain.items(), 1)
    }


def windows(evaluation: Evaluation) -> tuple[tuple[float, str], ...]:
    """The training windows, as marks of an axis of lengths or positions."""
    by_window: dict[int, list[str]] = {}
    for subject in evaluation.subjects:
        by_window.setdefault(subject.training_window, []).append(subject.name)
    alone = len(by_window) == 1
    return tuple(
        (float(window), "training window" if alone else f"training window of {', '.join(names)}")
        for window, names in sorted(by_window.items())
    )
