"""What a report is made of: sections of text, tables and pictures, as plain data that every renderer understands.

A suite says what there is to see; HTML, Markdown, CSV, LaTeX, PNG and SVG are made of the same blocks.
Figures that are not our own (a paper's) carry theirs=True and are shown as such, never mixed with ours.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from coca_train.statistics.pairs import Sample, Standing, standings

Form = str | Callable[[float], str]  # "{:.2f}", or a function that writes a number


def format_value(number: float, form: Form) -> str:
    return form.format(number) if isinstance(form, str) else form(number)


@dataclass(frozen=True)
class Spread:
    """How far the seeds of a mean lie apart: the lowest and the highest figure, in words "seeds 49.90 to 50.41", and
    their standard deviation."""

    low: float
    high: float
    words: str
    deviation: float | None = None

    @classmethod
    def over(cls, numbers: Sequence[float], form: Form) -> "Spread":
        """Return the spread of two or more seeds; without a deviation where a number is not finite."""
        low, high = min(numbers), max(numbers)
        words = f"seeds {format_value(low, form)} to {format_value(high, form)}"
        return cls(low, high, words, statistics.stdev(numbers) if math.isfinite(high - low) else None)


@dataclass(frozen=True)
class Value:
    """One figure. number: what is compared and exported, in full; None where there is none. text: as shown.

    low, high: its interval, where known, written out in `range` as the figure is. spread: of a mean over seeds. n: the
    number of documents or prompts, where those were drawn. sample: what it is the mean of, so that it can be compared
    with another figure document by document.
    """

    text: str
    number: float | None = None
    note: str = ""  # tooltip and footnote: why it is missing, what it was counted from
    low: float | None = None
    high: float | None = None
    range: str = ""
    spread: Spread | None = None
    n: int | None = None
    sample: Sample | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        number: float | None,
        form: Form = "{:.2f}",
        note: str = "",
        missing: str = "",
        low: float | None = None,
        high: float | None = None,
        spread: Spread | None = None,
        n: int | None = None,
        sample: Sample | None = None,
    ) -> "Value":
        """Write a number in this form; for None, a dash with the reason why it is missing."""
        if number is None:
            return cls(MISSING.text, note=missing)
        if low is None or high is None:
            low, high, ends = None, None, ""
        else:
            ends = f"{format_value(low, form)} to {format_value(high, form)}"
        return cls(format_value(number, form), number, note, low, high, ends, spread, n, sample)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its interval; None where it is not known or the figure is missing."""
        return None if self.number is None or self.low is None or self.high is None else (self.low, self.high)

    @property
    def uncertainty(self) -> str:
        """Its interval and its spread in words."""
        return "; ".join(filter(None, (self.range, self.spread.words if self.spread else "")))


MISSING = Value("–")
ANSWERS = {"yes": "✓", "no": "✗", "open": "?"}  # signs in place of figures
ANSWERED = "answers"  # name of the table of them, which a page opens with
INTERVAL = "95 % interval"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table. label: a text for each label column. values: one for each column of figures. called: the
    label as people say it, on pages and in a terminal; CSV files have the label."""

    label: tuple[str, ...]
    values: tuple[Value, ...]
    theirs: bool = False
    called: tuple[str, ...] = ()

    @property
    def display_label(self) -> tuple[str, ...]:
        return self.called or self.label


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of figures. name: of its files; letters, digits and dashes, unique in a report.

    best: which figure of a column is set in bold, with all that are not significantly worse (statistics/pairs.py),
    among ours and among theirs separately; "" = none.
    """

    name: str
    title: str
    label_columns: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    best: Literal["low", "high", ""] = ""
    interval: str = INTERVAL  # what low and high of its figures are
    note: str = ""  # one or two sentences below it: definition, unit, what is missing

    def standings(self, theirs: bool) -> list[Standing]:
        """Return which figures of each column are the best, among theirs or among ours."""
        if theirs not in self._standings:
            rows = [row.values for row in self.rows if row.theirs == theirs]
            columns = [[values[column] for values in rows] for column in range(len(self.columns))]
            self._standings[theirs] = standings(columns, "high" if self.best == "high" else "low")
        return self._standings[theirs]

    @cached_property
    def _standings(self) -> dict[bool, list[Standing]]:
        """What `standings` has computed: every form of a report asks, and the answer takes a bootstrap."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. low, high: its interval, where known. least, most: the lowest and the highest seed of a mean over
    seeds. Points that are not finite are left out; an infinite one is shown at the edge."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    least: tuple[float | None, ...] | None = None
    most: tuple[float | None, ...] | None = None
    theirs: bool = False
    look: int | None = None  # its index in another picture of the page, whose colours it has; None: that in its own

    def look_index(self, index: int) -> int:
        """Return the index that decides on colour, marker and dashes. index: in its picture."""
        return index if self.look is None else self.look

    def points(self) -> Iterator[tuple[float, float, float | None, float | None, float | None, float | None]]:
        """Return (x, y, low, high, least, most) of each point; a bound that is not known is None."""
        nothing = (None,) * len(self.x)
        bounds = (each or nothing for each in (self.low, self.high, self.least, self.most))
        return zip(self.x, self.y, *bounds, strict=True)

    @classmethod
    def through(cls, label: str, points: Iterable[Sequence[float | None]], theirs: bool = False) -> "Line":
        """Return the curve through points (x, y), (x, y, low, high) or (x, y, low, high, least, most), without those
        that have no y."""
        known = [point for point in points if point[1] is not None]
        columns: list[Any] = list(zip(*known, strict=True)) or [(), ()]
        bounds = {
            name: column
            for name, column in zip(("low", "high", "least", "most"), columns[2:], strict=False)
            if any(v is not None for v in column)
        }
        return cls(label=label, x=tuple(map(float, columns[0])), y=columns[1], theirs=theirs, **bounds)

    @classmethod
    def of_values(cls, label: str, values: Iterable[tuple[float, Value]]) -> "Line":
        """Return the curve of figures by x, with the intervals and the spreads that they have."""
        ends = ((x, v.number, v.low, v.high, v.spread and v.spread.low, v.spread and v.spread.high) for x, v in values)
        return cls.through(label, ends)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over one axis. marks: (x, words) of vertical lines, such as the training window. n_shown: how many of the
    curves, the first ones, are drawn at once; a reader shows the others by their names. None: all of them."""

    name: str
    title: str
    alt: str  # the picture in words, for a screen reader
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    y_limits: tuple[float | None, float | None] = (None, None)
    marks: tuple[tuple[float, str], ...] = ()
    levels: tuple[tuple[float, str], ...] = ()  # (y, words) of horizontal lines, such as what must be passed
    interval: str = INTERVAL  # what low and high of its curves are
    note: str = ""
    n_shown: int | None = None

    def is_shown(self, index: int) -> bool:
        """Whether the index-th curve is drawn at once."""
        return self.n_shown is None or index < self.n_shown

    @property
    def not_drawn(self) -> str:
        """What pictures that nobody can press say of the curves that they leave out."""
        n_hidden = sum(not self.is_shown(index) for index in range(len(self.lines)))
        return f"{n_hidden} more curves are among the numbers of this picture." if n_hidden else ""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """One panel. values: row by row, from the top; None: nothing measured there. doubtful: squares, (row, column), with
    a figure and no colour: what the colour would say is not certain."""

    title: str
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    mark_after_x: int | None = None  # a line after this many columns: the training window
    doubtful: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class HeatMaps:
    """Panels with the same axes and the same colours from low to high."""

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


Picture = Lines | HeatMaps
Block = Text | Table | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a title. folded: a page shows it on a click only, such as definitions."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


State = Literal["reads", "partly", "none", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far the context of one model reaches, in a line.

    label: the model and its variant. line: "demonstrably uses its last 64 tokens; ...". parts: each in few words,
    ("uses", "64, not 128"), which lists show instead of the line. state: "reads" where every part reaches the training
    window, "partly" where one reaches less, "none" where one fails at its shortest length, "unknown" where too few
    documents were read.
    """

    label: str
    line: str
    parts: tuple[tuple[str, str], ...]
    state: State

    @property
    def short(self) -> str:
        """Its parts in a line, or the line where there are none."""
        return " · ".join(f"{name} {words}" for name, words in self.parts) or self.line


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report. finding: the result in a few sentences, the first of which is the page's headline. title: its subject.
    verdicts: one for each model and variant. summary: what else a newcomer should take away. facts: label and value of
    what was run. command: how to run it again."""

    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]]
    command: str
    finding: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
