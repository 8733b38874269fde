"""What every renderer reads from a block: which figures are best, what is missing and why, a picture's numbers."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from coca_train.report.blocks import (
    ANSWERED,
    MISSING,
    Document,
    HeatMaps,
    Lines,
    Picture,
    Row,
    Section,
    Spread,
    State,
    Table,
    Text,
    Value,
)
from coca_train.statistics.answers import LEAST

PAPER = "paper"  # the word that marks a row or a curve that is not ours
NAME = re.compile(r"[A-Za-z0-9-]+")
MARKED = "The rows marked “paper” are the paper's figures, not ours."
RANGES = "Small: {}."
BOLD = "Bold: the {} figure of a column{}; no interval is known, others may be as good."
TOO_FEW = f"Nothing is bold in a column of fewer than {LEAST} documents or prompts: too few to tell."
NOTHING = "A column in which a 0.00 is among them has no bold."
SEEDS = "Figures are means over seeds; small too: the lowest and the highest seed."
STROKES = "Strokes: from the lowest to the highest seed."
UNKNOWN = "No interval is known of these curves."
TIED = "Bold: {}, or not distinguishable from it{}{}."
PAIRED = ": differences of the same {}, judged for all of the table together, wrong at most 5 % of the time"
SIGNS: dict[State, tuple[str, str]] = {  # of a verdict: the sign, and its words for a screen reader
    "reads": ("✓", "its window or beyond"),
    "partly": ("◐", "a part of its window"),
    "none": ("✗", "nothing"),
    "unknown": ("?", "unknown"),
}


class Cell(NamedTuple):
    """One figure of a table. footnote: its letter, "" where the figure is not missing or nobody knows why."""

    value: Value
    is_best: bool
    footnote: str


class Opening(NamedTuple):
    """What a page opens with, and the sections without it."""

    answers: Table | None
    picture: Picture | None
    table: Table | None
    sections: list[Section]


def named_blocks(document: Document) -> Iterator[Table | Picture]:
    """Yield every block that has files of its own, in order.

    Raises ValueError for a name that is not unique or cannot be a file's.
    """
    seen: set[str] = set()
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Text):
                continue
            if block.name in seen or not NAME.fullmatch(block.name):
                raise ValueError(f"block name {block.name!r}: must be letters, digits and dashes, and unique")
            seen.add(block.name)
            yield block


def split_opening(document: Document) -> Opening:
    """Take out the table of answers, the first picture, and the first table of ours."""
    blocks = [block for section in document.sections if not section.folded for block in section.blocks]
    picture = next((block for block in blocks if isinstance(block, Picture)), None)
    tables = [block for block in blocks if isinstance(block, Table)]
    answers = next((table for table in tables if table.name == ANSWERED), None)
    ours = (table for table in tables if table is not answers and not all(row.theirs for row in table.rows))
    table = next(ours, None)
    taken = {block.name for block in (answers, picture, table) if block is not None}
    rest = [
        replace(section, blocks=[block for block in section.blocks if getattr(block, "name", "") not in taken])
        for section in document.sections
    ]
    return Opening(answers, picture, table, [section for section in rest if section.blocks])


def best_places(table: Table) -> set[tuple[int, int]]:
    """Return (row, column) of each best figure and of those not distinguishable from it, ours and theirs apart.

    A group of one row has none: there is nothing to compare.
    """
    places: set[tuple[int, int]] = set()
    for theirs in (False, True) if table.best else ():
        group = [index for index, row in enumerate(table.rows) if row.theirs == theirs]
        if len(group) > 1:
            for column, standing in enumerate(table.standings(theirs)):
                places |= {(group[place], column) for place in standing.best}
    return places


def table_cells(table: Table) -> list[tuple[Row, list[Cell]]]:
    """Return every row with its cells."""
    best, letters = best_places(table), {reason: letter for letter, reason in footnotes(table)}
    return [
        (
            row,
            [
                Cell(value, (i, j) in best, letters.get(value.note, "") if value.number is None else "")
                for j, value in enumerate(row.values)
            ],
        )
        for i, row in enumerate(table.rows)
    ]


def footnotes(table: Table) -> list[tuple[str, str]]:
    """Return a letter and a reason for each reason why figures are missing, in reading order."""
    reasons = dict.fromkeys(v.note for row in table.rows for v in row.values if v.number is None and v.note)
    return [(_letter(index), reason) for index, reason in enumerate(reasons)]


def _letter(index: int) -> str:
    """a … z, aa …"""
    return chr(97 + index) if index < 26 else _letter(index // 26 - 1) + _letter(index % 26)


def has_intervals(table: Table) -> bool:
    """Return whether any figure has an interval."""
    return any(value.range for row in table.rows for value in row.values)


def explain_marks(table: Table) -> str:
    """Say what the small range, bold and the mark of the paper mean in this table."""
    values = [value for row in table.rows for value in row.values]
    ranged, theirs = has_intervals(table), any(row.theirs for row in table.rows)
    words = [RANGES.format(table.interval)] if ranged else []
    words += [SEEDS] if any(value.spread for value in values) else []
    if best_places(table):
        extreme = "lowest" if table.best == "low" else "highest"
        groups = ", ours and the paper's apart" if theirs else ""
        paired = any(value.sample for value in values)
        how = PAIRED.format("prompts" if table.best == "high" else "documents") if paired else ""
        words.append(TIED.format(extreme, groups, how) if ranged else BOLD.format(extreme, groups))
        words += [NOTHING] if table.best == "high" and ranged else []
    n_ours = sum(not row.theirs for row in table.rows)
    if table.best and n_ours > 1 and any(standing.few is not None for standing in table.standings(theirs=False)):
        words.append(TOO_FEW)
    return " ".join([*words, MARKED] if theirs else words)


def picture_note(block: Picture) -> str:
    """Return the words below a picture: its note, whether no curve of ours has an interval, what strokes are."""
    words = [block.note]
    if isinstance(block, Lines):
        ours = [line for line in block.lines if not line.theirs]
        words += [UNKNOWN] if ours and all(line.low is None for line in ours) else []
        words += [f"Dashed: {said}." for _, said in block.levels]
        words += [STROKES] if any(line.least for line in block.lines) else []
    return " ".join(filter(None, words))


def data_table(block: Picture) -> Table:
    """Return the numbers of a picture: a row for each curve, or for each line of a heat map; a question mark follows
    what is doubtful."""
    if isinstance(block, HeatMaps):
        columns = tuple(dict.fromkeys(name for panel in block.panels for name in panel.x_names))
        rows, alone = [], len(block.panels) == 1 and not block.panels[0].title
        for panel in block.panels:
            for i, (name, values) in enumerate(zip(panel.y_names, panel.values, strict=True)):
                by_column = {
                    x: Value.of(y, block.form + (" ?" if (i, j) in panel.doubtful else ""))
                    for j, (x, y) in enumerate(zip(panel.x_names, values, strict=True))
                }
                cells = tuple(by_column.get(x, MISSING) for x in columns)
                rows.append(Row(label=(name,) if alone else (panel.title, name), values=cells))
        labels = (block.y_label,) if alone else ("panel", block.y_label)
        return Table(name=block.name, title=block.title, label_columns=labels, columns=columns, rows=tuple(rows))
    xs = sorted({x for line in block.lines for x in line.x})
    rows = []
    for line in block.lines:
        by_x = {x: _point(y, *ends) for x, y, *ends in line.points()}
        rows.append(Row(label=(line.label,), values=tuple(by_x.get(x, MISSING) for x in xs), theirs=line.theirs))
    return Table(
        name=block.name,
        title=block.title,
        label_columns=("curve",),
        columns=tuple(map(format_number, xs)),
        rows=tuple(rows),
        note=f"Columns: {block.x_label}. Figures: {block.y_label}.",
        interval=block.interval,
    )


def _point(y: float, low: float | None, high: float | None, least: float | None, most: float | None) -> Value:
    # The deviation of the two ends alone is not that of the seeds.
    ends = None if least is None or most is None else Spread.over((least, most), format_number)
    return Value.of(y, format_number, low=low, high=high, spread=ends and replace(ends, deviation=None))


def format_number(number: float) -> str:
    """Write a number for people: four significant digits, no exponent below a million."""
    if not math.isfinite(number):
        return str(number)
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.0f}" if 9999.5 <= abs(number) < 1e6 else f"{number:,.4g}"


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield (whether it is a list, its items) for each paragraph of a Text; other paragraphs are one item.

    A list begins with "* "; lines without it continue the item above.
    """
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines()]
        if block.strip() and lines[0].startswith("* "):
            yield True, [item.strip() for item in re.split(r"(?:^|\n)\* ", "\n".join(lines)) if item.strip()]
        elif block.strip():
            yield False, [" ".join(lines)]


def split_code(text: str) -> list[tuple[bool, str]]:
    """Split a text with `code` in it into (whether it is code, words), in order."""
    return [(index % 2 == 1, part) for index, part in enumerate(re.split(r"`([^`]*)`", text)) if part]
