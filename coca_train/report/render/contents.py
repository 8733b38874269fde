"""What every renderer reads out of a block: which figures are best, what is missing and why, a picture's data."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from coca_train.report.blocks import (
    ANSWERED,
    MISSING,
    Document,
    Lines,
    Panels,
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
SIGNS: dict[State, tuple[str, str]] = {  # of a verdict, beside its words; and for who cannot see it
    "reads": ("✓", "its window or beyond"),
    "partly": ("◐", "a part of its window"),
    "none": ("✗", "nothing"),
    "unknown": ("?", "unknown"),
}


def named_blocks(document: Document) -> Iterator[Table | Picture]:
    """All that gets files of its own, in order. Raises ValueError for a name that is not unique, or not a file's."""
    seen: set[str] = set()
    for section in document.sections:
        for block in section.blocks:
            if isinstance(block, Text):
                continue
            if block.name in seen or not NAME.fullmatch(block.name):
                raise ValueError(f"block name {block.name!r}: must be letters, digits and dashes, and unique")
            seen.add(block.name)
            yield block


def best_places(table: Table) -> set[tuple[int, int]]:
    """(row, column) of the best figures and of all that cannot be told apart from them, among ours and among theirs.

    A group of one row has none: there is nothing to compare.
    """
    places: set[tuple[int, int]] = set()
    if not table.best:
        return places
    for theirs in (False, True):
        group = [index for index, row in enumerate(table.rows) if row.theirs == theirs]
        if len(group) > 1:
            for column, standing in enumerate(table.standings(theirs)):
                places |= {(group[place], column) for place in standing.best}
    return places


def has_intervals(table: Table) -> bool:
    return any(value.range for row in table.rows for value in row.values)


def legend(table: Table) -> str:
    """What the small range, bold and the mark mean, in this table."""
    words = [RANGES.format(table.interval)] if has_intervals(table) else []
    words += [SEEDS] if any(value.spread for row in table.rows for value in row.values) else []
    theirs = any(row.theirs for row in table.rows)
    if best_places(table):
        extreme = "lowest" if table.best == "low" else "highest"
        groups = ", ours and the paper's apart" if theirs else ""
        paired = any(value.sample for row in table.rows for value in row.values)
        how = PAIRED.format("prompts" if table.best == "high" else "documents") if paired else ""
        words.append(TIED.format(extreme, groups, how) if has_intervals(table) else BOLD.format(extreme, groups))
        words += [NOTHING] if table.best == "high" and has_intervals(table) else []
    ours = [row for row in table.rows if not row.theirs]
    if table.best and len(ours) > 1 and any(standing.few is not None for standing in table.standings(theirs=False)):
        words.append(TOO_FEW)
    if theirs:
        words.append(MARKED)
    return " ".join(words)


def picture_note(block: Picture) -> str:
    """What stands below a picture; of curves of ours without a single interval, that there is none; what strokes of
    seeds are."""
    ours = [line for line in block.lines if not line.theirs] if isinstance(block, Lines) else []
    unknown = ours and all(line.low is None for line in ours)
    strokes = isinstance(block, Lines) and any(line.least for line in block.lines)
    return " ".join(words for words in (block.note, UNKNOWN if unknown else "", STROKES if strokes else "") if words)


def lead(document: Document) -> tuple[Table | None, list[Picture], Table | None, list[Section]]:
    """What a page opens with: the table of answers, one picture or two views of one, and one table of ours; and the
    sections without them."""
    blocks = [block for section in document.sections if not section.folded for block in section.blocks]
    pictures = [block for block in blocks if isinstance(block, Picture)]
    other = pictures[0].other if pictures and isinstance(pictures[0], Lines) else ""
    pictures = pictures[:1] + [block for block in pictures[1:] if block.name == other]
    answers = next((block for block in blocks if isinstance(block, Table) and block.name == ANSWERED), None)
    tables = (b for b in blocks if isinstance(b, Table) and b is not answers and not all(row.theirs for row in b.rows))
    first = next(tables, None)
    taken = {block.name for block in (answers, *pictures, first) if block is not None}
    rest = [
        replace(section, blocks=[block for block in section.blocks if getattr(block, "name", "") not in taken])
        for section in document.sections
    ]
    return answers, pictures, first, [section for section in rest if section.blocks]


def reasons(table: Table) -> list[str]:
    """Why figures are missing, each reason once, in reading order: the footnotes."""
    notes = [v.note for row in table.rows for v in row.values if v.number is None and v.note]
    return list(dict.fromkeys(notes))


def figures(table: Table, figure: Callable[[Value, bool, str], str]) -> Iterator[tuple[Row, list[str]]]:
    """Every row with its figures as a renderer writes one: figure(value, is it among the best, its footnote's
    letter)."""
    best, notes = best_places(table), reasons(table)
    for index, row in enumerate(table.rows):
        marks = [letter(notes.index(v.note)) if v.number is None and v.note else "" for v in row.values]
        places = enumerate(zip(row.values, marks, strict=True))
        yield row, [figure(value, (index, column) in best, mark) for column, (value, mark) in places]


def footnotes(table: Table) -> list[tuple[str, str]]:
    """Letters, and why figures with them are missing."""
    return [(letter(index), note) for index, note in enumerate(reasons(table))]


def letter(index: int) -> str:
    """Of a footnote: a … z, aa …"""
    return chr(97 + index) if index < 26 else letter(index // 26 - 1) + letter(index % 26)


def shown(number: float) -> str:
    """A number people can read: four significant digits, no exponent below a million."""
    if not math.isfinite(number):
        return str(number)
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:,.0f}" if 9999.5 <= abs(number) < 1e6 else f"{number:,.4g}"


def data_table(block: Picture) -> Table:
    """The figures of a picture: a row for each curve, or for each line of a panel."""
    if isinstance(block, Lines):
        return _curves(block)
    if isinstance(block, Panels):
        return _side_by_side(block)
    columns = tuple(dict.fromkeys(name for panel in block.panels for name in panel.x_names))
    rows = []
    for panel in block.panels:
        for name, values in zip(panel.y_names, panel.values, strict=True):
            by_column = dict(zip(panel.x_names, values, strict=True))
            cells = tuple(Value.of(by_column.get(x), block.form) for x in columns)
            rows.append(Row(label=(panel.title, name), values=cells))
    labels = ("panel", block.y_label)
    return Table(name=block.name, title=block.title, label_columns=labels, columns=columns, rows=tuple(rows))


def axes_in_words(block: Panels) -> str:
    """What the panels have in common, and what their broken lines are."""
    first, levels = block.panels[0], dict[str, list[str]]()
    for panel in block.panels:
        for _, words in panel.levels:
            levels.setdefault(words, []).append(panel.title)
    said = [f"Against the {first.x_label}", *(f"dotted: {words}" for _, words in first.marks)]
    said += [f"dashed in {', '.join(titles)}: {words}" for words, titles in levels.items()]
    return f"{'; '.join(said)}."


def _curves(block: Lines) -> Table:
    xs = sorted({x for line in block.lines for x in line.x})
    rows = []
    for line in block.lines:
        nothing = (None,) * len(line.x)
        bounds = (each or nothing for each in (line.low, line.high, line.least, line.most))
        by_x = {x: _point(*point) for x, *point in zip(line.x, line.y, *bounds, strict=True)}
        rows.append(Row(label=(line.label,), values=tuple(by_x.get(x, MISSING) for x in xs), theirs=line.theirs))
    return Table(
        name=block.name,
        title=block.title,
        label_columns=("curve",),
        columns=tuple(shown(x) for x in xs),
        rows=tuple(rows),
        note=f"Columns: {block.x_label}. Figures: {block.y_label}.",
        interval=block.interval,
    )


def _side_by_side(block: Panels) -> Table:
    xs = sorted({x for panel in block.panels for line in panel.lines for x in line.x})
    rows = []
    for panel in block.panels:
        table = _curves(panel)
        for row in table.rows:
            by_x = dict(zip(table.columns, row.values, strict=True))
            if any(value.number is not None for value in row.values):
                values = tuple(by_x.get(shown(x), MISSING) for x in xs)
                rows.append(Row(label=(panel.title, *row.label), values=values, theirs=row.theirs))
    return Table(
        name=block.name,
        title=block.title,
        label_columns=("panel", "curve"),
        columns=tuple(map(shown, xs)),
        rows=tuple(rows),
        note=f"Columns: {block.panels[0].x_label}. Figures: "
        f"{'; '.join(f'{panel.title}: {panel.y_label}' for panel in block.panels)}.",
        interval=block.panels[0].interval,
    )


def _point(y: float, low: float | None, high: float | None, least: float | None, most: float | None) -> Value:
    # Of the two ends alone their deviation is not that of the seeds.
    known = None if least is None or most is None else replace(Spread.over((least, most), shown), deviation=None)
    return Value.of(y, shown, low=low, high=high, spread=known)


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """(is a list, its items) of each paragraph of a Text. A list begins with "* "; lines without it go on with the item
    above. A paragraph that is none is one item."""
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines()]
        if block.strip() and lines[0].startswith("* "):
            yield True, [item.strip() for item in re.split(r"(?:^|\n)\* ", "\n".join(lines)) if item.strip()]
        elif block.strip():
            yield False, [" ".join(lines)]


def pieces(text: str) -> list[tuple[bool, str]]:
    """(is code, words) in order, of a text with `code` in it."""
    return [(index % 2 == 1, part) for index, part in enumerate(re.split(r"`([^`]*)`", text)) if part]
