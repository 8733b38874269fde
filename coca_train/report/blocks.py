"""What a report is made of: sections of text, tables and pictures, as plain data that every renderer understands.

A suite says what there is to see; HTML, Markdown, CSV, LaTeX, PNG and SVG are made of the same blocks.
Figures that are not our own (a paper's) carry theirs=True and are shown as such, never mixed with ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Value:
    """One figure. number: what is compared and exported, in full; None: there is none. text: as shown."""

    text: str
    number: float | None = None
    note: str = ""  # of a tooltip and a footnote: why it is missing, its interval

    @classmethod
    def of(cls, number: float | None, form: str = "{:.2f}", note: str = "", missing: str = "") -> "Value":
        """A number in this form, with its note; None: that there is none, and why (missing)."""
        return cls(MISSING.text, note=missing) if number is None else cls(form.format(number), number, note)


MISSING = Value("–")
MAX_BANDS = 6  # intervals of one picture


@dataclass(frozen=True, kw_only=True)
class Row:
    """label: one text a label column. values: one a column of figures."""

    label: tuple[str, ...]
    values: tuple[Value, ...]
    theirs: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """name: of its files; letters, digits and dashes, unique in a report.

    best: which figure of a column is set in bold, among ours and among theirs separately; "" = none.
    """

    name: str
    title: str
    label_columns: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    best: Literal["low", "high", ""] = ""
    note: str = ""  # one or two sentences below it: definition, unit, what is missing


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. low, high: its interval, where known. Points that are not finite are left out."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    theirs: bool = False

    @classmethod
    def through(cls, label: str, points: Iterable[Sequence[float | None]], theirs: bool = False) -> "Line":
        """The curve through points (x, y), or (x, y, low, high); those without y are left out."""
        known = [point for point in points if point[1] is not None]
        columns: list[Any] = list(zip(*known, strict=True)) or [(), ()]
        bounds = {
            name: column
            for name, column in zip(("low", "high"), columns[2:], strict=False)
            if any(v is not None for v in column)
        }
        return cls(label=label, x=tuple(map(float, columns[0])), y=columns[1], theirs=theirs, **bounds)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over one axis. marks: (x, words) of vertical lines, such as the training window."""

    name: str
    title: str
    alt: str  # the picture in words, for who cannot see it
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    y_limits: tuple[float | None, float | None] = (None, None)
    marks: tuple[tuple[float, str], ...] = ()
    note: str = ""

    @property
    def shows_intervals(self) -> bool:
        """Bands of more curves than MAX_BANDS only hide one another; their numbers are in the figure's table."""
        return sum(line.low is not None for line in self.lines) <= MAX_BANDS


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """One panel. values: row by row, from the top; None: nothing measured there."""

    title: str
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    mark_after_x: int | None = None  # a line after this many columns: the training window


@dataclass(frozen=True, kw_only=True)
class HeatMaps:
    """Panels with the same axes and the same colours from low to high, dark = high."""

    name: str
    title: str
    alt: str
    x_label: str
    y_label: str
    panels: tuple[HeatMap, ...]
    low: float
    high: float
    form: str = "{:.2f}"  # of a figure in its square
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Paragraphs of plain words; a paragraph of lines that begin with "* " is a list, `code` is set as code."""

    text: str


Block = Text | Table | Lines | HeatMaps


@dataclass(frozen=True, kw_only=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far one model reads, in a line: what a page opens with.

    label: the model, with its variant where there are several. line: the verdict, "reads to 512 tokens (2x its
    window)". parts: what it is the least of, each with its own words: ("holds", "2,048 tokens"). state: whether it
    reads anywhere, nowhere, or nobody can say from so few documents.
    """

    label: str
    line: str
    parts: tuple[tuple[str, str], ...]
    state: Literal["reads", "none", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report. verdicts: one a row of what was measured. summary: what a newcomer should take away, one sentence
    each. facts: what was run, label and value. command: how to run it again."""

    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]]
    command: str
    verdicts: Sequence[Verdict] = ()
