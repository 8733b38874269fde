"""What all pages share: a grid as tables, curves and heat maps, its training windows, what is missing.

A page is a declaration: sections by title, each a list of blocks or text. A block with nothing to show is None and left
out, so no page checks whether there was a result: section "Not measured" has the reasons.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from coca_train.evaluation.results import Cell, Evaluation, GridRow, Point, Result, same_tokens
from coca_train.report import paper
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
    Verdict,
)
from coca_train.report.headlines import NATS, headline
from coca_train.statistics.shares import wilson

FEW_NAMES = 4  # of models or tasks, that a title lists
OTHER_TOKENS = (
    "The tokenizers of these models differ: losses a token are no comparison; bits per byte are, as far as they read "
    "the same documents."
)
BEYOND = "▲ or ▼ at an edge: the figure lies beyond it; the table has it."
NO_RESULT = {"out_of_memory": "OOM", "impossible": MISSING.text}

Pick = Callable[..., Value | float | None]  # from a cell's result, and what else the row of a table is about
Column = Callable[..., Value]  # from a row of the grid, and what else the row of a table is about
Sections = Mapping[str, Iterable[Block | str | None]]  # by title


def document(
    evaluation: Evaluation[Result],
    title: str,
    summary: Sequence[str],
    sections: Sections,
    after: Sections | None = None,
    facts: Sequence[tuple[str, str]] = (),
    at: str = "",
    verdicts: Sequence[Verdict] = (),
    finding: Sequence[str] = (),
) -> Document:
    """Return the page. after: sections that are folded, such as definitions. facts: besides the evaluation's. at: what
    its title says in place of the lengths."""
    missing = "\n".join(f"* {line}" for line in evaluation.absences())
    return Document(
        title=f"{title}: {grid_in_words(evaluation, at)}",
        summary=summary,
        sections=[
            *build_sections({**sections, "Not measured": [missing]}),
            *(replace(section, folded=True) for section in build_sections(after or {})),
        ],
        facts=[*evaluation.facts, *facts],
        command=evaluation.command,
        verdicts=verdicts,
        finding=finding,
    )


def grid_in_words(evaluation: Evaluation[Result], at: str = "") -> str:
    """Return what was asked, for a title: "quickstart, 128 to 2,048 tokens". at: in place of the lengths."""
    names = [subject.name for subject in evaluation.subjects]
    who = ", ".join(names) if len(names) <= FEW_NAMES else f"{len(names)} models"
    lengths = [point for point in evaluation.points if isinstance(point, int)]
    tasks = [point for point in evaluation.points if isinstance(point, str)]
    words = ", ".join(tasks) if len(tasks) <= FEW_NAMES else f"{len(tasks)} tasks"
    return f"{who}, {at or (tokens(lengths) if lengths else words)}"


def tokens(lengths: Sequence[int]) -> str:
    """Write lengths from the shortest to the longest."""
    first, last = min(lengths), max(lengths)
    return f"{first:,} tokens" if first == last else f"{first:,} to {last:,} tokens"


def paper_rows(evaluation: Evaluation[Result], tables: Mapping[str, paper.Series]) -> tuple[Row, ...]:
    """Return the methods of CoCA's tables ("table 1": ...) below ours: at the same multiple of the training window
    where our models have one and the same, else at the same length."""
    windows = {subject.training_window for subject in evaluation.subjects}
    return paper.rows_of_tables(tables, evaluation.points, next(iter(windows)) if len(windows) == 1 else None)


def build_sections(sections: Sections) -> list[Section]:
    """Return the sections with something to show."""
    shown = {
        title: [Text(text=b) if isinstance(b, str) else b for b in blocks if b] for title, blocks in sections.items()
    }
    return [Section(title=title, blocks=blocks) for title, blocks in shown.items() if blocks]


def heading(point: Point) -> str:
    """Head a column: a length [tokens], or what a suite measures there."""
    return f"{point:,}" if isinstance(point, int) else point


def in_words(column: str) -> str:
    """Write a heading such as `2,048 (16×)` as part of a sentence: "2,048 tokens (16×)"."""
    length, _, times = column.partition(" ")
    return f"{length} tokens {times}".rstrip()


def figure(cell: Cell[Result] | None, pick: Pick, form: str = "{:.2f}") -> Value:
    """Return what `pick` takes from a cell; otherwise why there is nothing. form: of a plain number."""
    if cell is None:
        return Value(MISSING.text, note="not asked for")
    if cell.status != "done":
        return Value(NO_RESULT[cell.status], note=cell.reason)
    picked = pick(cell.result) if cell.result else None
    return picked if isinstance(picked, Value) else Value.of(picked, form, missing="nothing to count")


def by_point(
    points: Iterable[Point], pick: Pick, form: str = "{:.2f}", name: Callable[[Point], str] = heading
) -> dict[str, Column]:
    """Return columns of `table`: one a point of the grid. name: its heading."""

    def column(point: Point) -> Column:
        return lambda row, *what: figure(row.cells.get(point), lambda result: pick(result, *what), form)

    return {name(point): column(point) for point in points}


def table(
    rows: Sequence[GridRow[Result]],
    columns: Mapping[str, Column],
    *,
    by: Mapping[str, Sequence[str]] | None = None,
    theirs: Sequence[Row] = (),
    of_tokens: bool = False,
    **fields: Any,
) -> Table | None:
    """Make one row a model and variant, then `theirs`. columns: by heading, the figure of a row. by: further columns of
    labels and all values of each; a row for every combination, which the figures are of. of_tokens: whether
    they are losses of a text's tokens, of which none is the best where the models' tokens differ. fields: other ones of
    Table."""
    if of_tokens and not same_tokens(row.subject for row in rows if row.results):
        fields |= {"best": "", "note": f"{fields.get('note', '')} {OTHER_TOKENS}".strip()}
    more = by or {}
    ours = [
        Row(
            label=(*row.name, *what),
            values=tuple(value(row, *what) for value in columns.values()),
            called=(*row.called, *what),
        )
        for row in rows
        for what in product(*more.values())
    ]
    labels, whole = ("model", "variant", *more), (*ours, *theirs)
    return Table(label_columns=labels, columns=tuple(columns), rows=whole, **fields) if whole else None


def by_length(rows: Iterable[GridRow[Result]], pick: Pick) -> list[Line]:
    """Return the curve of each model and variant against the length, of what the table of `by_point` has."""
    return [
        Line.of_values(row.label, ((int(point), figure(cell, pick)) for point, cell in row.cells.items()))
        for row in rows
    ]


def best_at_the_longest(
    rows: Sequence[GridRow[Result]], shown: Table | None, where: str, does: str, quantity: str, *units: str
) -> list[str]:
    """Say which model and variant is best at the longest length that has a figure, if any surely is.

    shown: a row a model and variant. where: "In prompts of {} tokens". does: what a winner does. units: of differences,
    and what was drawn, see `headline`; none: losses of a text's tokens.
    """
    if shown is None:
        return []
    ours = [row for row in shown.rows if not row.theirs]
    known = [i for i, _ in enumerate(shown.columns) if any(row.values[i].number is not None for row in ours)]
    if not known:
        return []
    if not units and not same_tokens(row.subject for row in rows if row.results):
        return [OTHER_TOKENS]
    said = where.format(shown.columns[known[-1]])
    return [headline(shown, known[-1], [row.label for row in rows], said, does, quantity, *(units or (NATS,)))]


def curves(lines: Iterable[Line], **fields: Any) -> Lines | None:
    """Draw the lines that have points. fields: other ones of Lines."""
    drawn = tuple(line for line in lines if line.x)
    count = "1 curve" if len(drawn) == 1 else f"{len(drawn)} curves"
    alt = f"{fields['title']}: {fields['y_label']} against {fields['x_label']}, with {count}."
    return Lines(lines=drawn, alt=alt, **fields) if drawn else None


PROMPT = "length of the prompt [tokens]"


def share_curves(evaluation: Evaluation[Result], lines: Iterable[Line], **fields: Any) -> Lines | None:
    """Draw curves of a share (0 to 1) against the length of a prompt. fields: other ones of Lines."""
    marks = training_windows(evaluation)
    return curves(lines, x_label=PROMPT, x_log=True, y_limits=(0.0, 1.0), marks=marks, **fields)


def heat_maps(
    rows: Sequence[GridRow[Result]],
    lengths: Sequence[int],
    y_names: Sequence[str],
    share: Callable[[GridRow[Result], int, int], float | None],
    *,
    n: float,
    note: str = "",
    **fields: Any,
) -> HeatMaps | None:
    """Draw one panel a model and variant, with a line where its training window ends. share(row, length, index of the
    y name): 0 to 1. n: cases of a square. fields: other ones of HeatMaps."""

    def panel(row: GridRow[Result]) -> HeatMap:
        within = sum(length <= row.subject.training_window for length in lengths)
        return HeatMap(
            title=row.label,
            x_names=tuple(map(heading, lengths)),
            y_names=tuple(y_names),
            values=tuple(tuple(share(row, length, y) for length in lengths) for y in range(len(y_names))),
            mark_after_x=within if 0 < within < len(lengths) else None,
        )

    alt = f"{fields['title']}, a panel for each model and variant: {fields['y_label']} against {PROMPT}."
    low, high = wilson(n / 2, max(1, round(n)))
    notes = (
        note,
        "The line marks the training window.",
        f"A square has about {n:,.0f} cases: its share is known to {(high - low) / 2:.2f} either way, or better.",
    )
    words, panels = " ".join(filter(None, notes)), tuple(map(panel, rows))
    return HeatMaps(x_label=PROMPT, alt=alt, panels=panels, low=0.0, high=1.0, note=words, **fields) if rows else None


def training_windows(evaluation: Evaluation[Result]) -> tuple[tuple[float, str], ...]:
    """Mark an axis of lengths or positions."""
    by_window: dict[int, list[str]] = {}
    for subject in evaluation.subjects:
        by_window.setdefault(subject.training_window, []).append(subject.name)
    alone = len(by_window) == 1
    return tuple(
        (float(window), "training window" if alone else f"training window of {', '.join(names)}")
        for window, names in sorted(by_window.items())
    )


def file_names(names: Sequence[str]) -> dict[str, str]:
    """Return for each name a part of a block's name: letters, digits and dashes, different for different names."""
    plain = {name: re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names}
    return {
        name: text if text and list(plain.values()).count(text) == 1 else f"{text}-{number}".strip("-")
        for number, (name, text) in enumerate(plain.items(), 1)
    }
