"""What all pages say in the same way: a grid as tables, curves and heat maps, its training windows, what is missing.

A page is a declaration: sections by title, each a list of blocks made here or by hand; a text stands for paragraphs.
What has nothing to show is None and left out, so no page asks whether there was a result: section "Not measured" has
the reasons.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coca_train.evaluation.results import Cell, Evaluation, GridRow, Point
from coca_train.report.blocks import (
    MISSING,
    Block,
    Document,
    HeatMap,
    HeatMaps,
    Line,
    Lines,
    Row,
    Section,
    Table,
    Text,
    Value,
)

NO_RESULT = {"out_of_memory": "OOM", "impossible": MISSING.text}

Pick = Callable[[Mapping[str, Any]], Value | float | None]  # from a cell's result
Sections = Mapping[str, Iterable[Block | str | None]]  # by title


def document(
    evaluation: Evaluation,
    title: str,
    summary: Sequence[str],
    sections: Sections,
    after: Sections | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> Document:
    """The page. after: sections behind the one that says what was not measured. facts: besides the evaluation's."""
    missing = "\n".join(f"* {line}" for line in evaluation.absences())
    return Document(
        title=f"{title}: {evaluation.name}",
        summary=summary,
        sections=written({**sections, "Not measured": [missing], **(after or {})}),
        facts=[*evaluation.facts, *facts],
        command=evaluation.command,
    )


def written(sections: Sections) -> list[Section]:
    """Those with something to show."""
    shown = {
        title: [Text(text=b) if isinstance(b, str) else b for b in blocks if b] for title, blocks in sections.items()
    }
    return [Section(title=title, blocks=blocks) for title, blocks in shown.items() if blocks]


def heading(point: Point) -> str:
    """Of a column: a length [tokens], or what a suite measures there."""
    return f"{point:,}" if isinstance(point, int) else point


def figure(cell: Cell | None, pick: Pick, form: str = "{:.2f}") -> Value:
    """What `pick` takes from a cell; otherwise why there is nothing. form: of a plain number."""
    if cell is None:
        return Value(MISSING.text, note="not asked for")
    if cell.status != "done":
        return Value(NO_RESULT[cell.status], note=cell.reason)
    picked = pick(cell.result) if cell.result else None
    if picked is None:
        return Value(MISSING.text, note="nothing to count")
    return picked if isinstance(picked, Value) else Value(form.format(picked), picked)


def figures(row: GridRow, points: Iterable[Point], pick: Pick, form: str = "{:.2f}") -> tuple[Value, ...]:
    return tuple(figure(row.cells.get(point), pick, form) for point in points)


def by_point(points: Iterable[Point], pick: Pick, form: str = "{:.2f}") -> dict[str, Callable[[GridRow], Value]]:
    """Columns of `table`: one a point of the grid."""
    return {heading(p): lambda row, p=p: figure(row.cells.get(p), pick, form) for p in points}


def table(
    rows: Sequence[GridRow],
    columns: Mapping[str, Callable[[GridRow], Value]],
    *,
    theirs: Sequence[Row] = (),
    **fields: Any,
) -> Table | None:
    """One row a model and variant, then `theirs`. columns: by heading, the figure of a row. fields: other ones of
    Table."""
    ours = [Row(label=row.name, values=tuple(value(row) for value in columns.values())) for row in rows]
    whole = tuple([*ours, *theirs])
    labels = ("model", "variant")
    return Table(label_columns=labels, columns=tuple(columns), rows=whole, **fields) if whole else None


def curves(lines: Iterable[Line], **fields: Any) -> Lines | None:
    """fields: other ones of Lines."""
    drawn = tuple(line for line in lines if line.x)
    return Lines(lines=drawn, **fields) if drawn else None


def heat_maps(
    rows: Sequence[GridRow],
    lengths: Sequence[int],
    y_names: Sequence[str],
    share: Callable[[GridRow, int, int], float | None],
    **fields: Any,
) -> HeatMaps | None:
    """One panel a model and variant, with a line where its training window ends. share(row, length, index of the
    y name): 0 to 1. fields: other ones of HeatMaps."""
    panels = []
    for row in rows:
        within = sum(length <= row.subject.training_window for length in lengths)
        panels.append(
            HeatMap(
                title=row.label,
                x_names=tuple(map(heading, lengths)),
                y_names=tuple(y_names),
                values=tuple(tuple(share(row, length, y) for length in lengths) for y in range(len(y_names))),
                mark_after_x=within if 0 < within < len(lengths) else None,
            )
        )
    return (
        HeatMaps(x_label="length of the prompt [tokens]", panels=tuple(panels), low=0.0, high=1.0, **fields)
        if panels
        else None
    )


def training_windows(evaluation: Evaluation) -> tuple[tuple[float, str], ...]:
    """Marks of an axis of lengths or positions."""
    by_window: dict[int, list[str]] = {}
    for subject in evaluation.subjects:
        by_window.setdefault(subject.training_window, []).append(subject.name)
    alone = len(by_window) == 1
    return tuple(
        (float(window), "training window" if alone else f"training window of {', '.join(names)}")
        for window, names in sorted(by_window.items())
    )


def file_names(names: Sequence[str]) -> dict[str, str]:
    """For each name a part of a block's name: letters, digits and dashes, different for different names."""
    plain = {name: re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names}
    return {
        name: text if text and list(plain.values()).count(text) == 1 else f"{text}-{number}".strip("-")
        for number, (name, text) in enumerate(plain.items(), 1)
    }
