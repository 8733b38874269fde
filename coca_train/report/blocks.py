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

from coca_train.report.standings import Standing, standings
from coca_train.statistics.pairs import Sample

Form = str | Callable[[float], str]  # "{:.2f}", or what makes words of a number


def in_form(number: float, form: Form) -> str:
    return form.format(number) if isinstance(form, str) else form(number)


@dataclass(frozen=True)
class Spread:
    """Between seeds, of a figure that is a mean over them: their lowest and highest figure, in words
    "seeds 49.90 to 50.41", and their standard deviation."""

    low: float
    high: float
    words: str
    deviation: float | None = None

    @classmethod
    def over(cls, numbers: Sequence[float], form: Form) -> "Spread":
        """numbers: of each seed, two or more. Their deviation is known where all of them are told."""
        low, high = min(numbers), max(numbers)
        words = f"seeds {in_form(low, form)} to {in_form(high, form)}"
        return cls(low, high, words, statistics.stdev(numbers) if math.isfinite(high - low) else None)


@dataclass(frozen=True)
class Value:
    """One figure. number: what is compared and exported, in full; None: there is none. text: as shown.

    low, high: its interval, where known, written out in `range` as the figure is. spread: of a mean over seeds. n: how
    many documents or prompts it is of, where those are what was drawn. sample: what it is the mean of, where another
    figure may be compared with it one by one.
    """

    text: str
    number: float | None = None
    note: str = ""  # of a tooltip and a footnote: why it is missing, what it was counted from
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
        """A number in this form, with its note, interval, spread, n and sample; None: that there is none, and why
        (missing)."""
        if number is None:
            return cls(MISSING.text, note=missing)
        if low is None or high is None:
            return cls(in_form(number, form), number, note, spread=spread, n=n, sample=sample)
        ends = f"{in_form(low, form)} to {in_form(high, form)}"
        return cls(in_form(number, form), number, note, low, high, ends, spread, n, sample)

    @property
    def interval(self) -> tuple[float, float] | None:
        """None where it is not known, as of a figure that is missing."""
        return None if self.number is None or self.low is None or self.high is None else (self.low, self.high)

    @property
    def beside(self) -> str:
        """What stands beside it in a line: its interval and its spread."""
        return "; ".join(words for words in (self.range, self.spread.words if self.spread else "") if words)


MISSING = Value("–")
ANSWERS = {"yes": "✓", "no": "✗", "open": "?"}  # signs in place of figures
ANSWERED = "answers"  # name of the table of them, which a page opens with
INTERVAL = "95 % interval"


@dataclass(frozen=True, kw_only=True)
class Row:
    """label: one text a label column. values: one a column of figures. called: the label as people say it, on pages and
    in a terminal; CSV files have the label."""

    label: tuple[str, ...]
    values: tuple[Value, ...]
    theirs: bool = False
    called: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        return self.called or self.label


@dataclass(frozen=True, kw_only=True)
class Table:
    """name: of its files; letters, digits and dashes, unique in a report.

    best: which figure of a column is set in bold, with all that cannot be told apart from it (standings.py), among ours
    and among theirs separately; "" = none.
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
        """Of each column of these rows, which has a best."""
        return self._theirs if theirs else self._ours

    # Kept: every form of a report asks, and a bootstrap is behind the answer.
    @cached_property
    def _ours(self) -> list[Standing]:
        return self._standings(theirs=False)

    @cached_property
    def _theirs(self) -> list[Standing]:
        return self._standings(theirs=True)

    def _standings(self, theirs: bool) -> list[Standing]:
        rows = [row.values for row in self.rows if row.theirs == theirs]
        columns = [[values[column] for values in rows] for column in range(len(self.columns))]
        return standings(columns, "high" if self.best == "high" else "low")


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
    look: int | None = None  # where it stands in another picture of the page, whose colours it has; None: in this one

    def place(self, index: int) -> int:
        """By which it gets its colour, marker and dashes; index: in its picture."""
        return index if self.look is None else self.look

    def points(self) -> Iterator[tuple[float, float, float | None, float | None, float | None, float | None]]:
        """Yield (x, y, low, high, least, most); a bound that is not known is None."""
        nothing = (None,) * len(self.x)
        bounds = (each or nothing for each in (self.low, self.high, self.least, self.most))
        return zip(self.x, self.y, *bounds, strict=True)

    @classmethod
    def through(cls, label: str, points: Iterable[Sequence[float | None]], theirs: bool = False) -> "Line":
        """The curve through points (x, y), (x, y, low, high) or (x, y, low, high, least, most); those without y are
        left out."""
        known = [point for point in points if point[1] is not None]
        columns: list[Any] = list(zip(*known, strict=True)) or [(), ()]
        bounds = {
            name: column
            for name, column in zip(("low", "high", "least", "most"), columns[2:], strict=False)
            if any(v is not None for v in column)
        }
        return cls(label=label, x=tuple(map(float, columns[0])), y=columns[1], theirs=theirs, **bounds)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over one axis. marks: (x, words) of vertical lines, such as the training window.

    x_shown: what the axis shows besides the curves' own x, where pictures side by side have one axis.
    y_span: how much of y the axis shows at least, where smaller differences mean nothing (scales.py has the rule).
    view, other: what a page calls it in a choice between two views of the same curves, and the name of the other one.
    """

    name: str
    title: str
    alt: str  # the picture in words, for who cannot see it
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    x_shown: tuple[float, ...] = ()
    y_log: bool = False
    y_limits: tuple[float | None, float | None] = (None, None)
    y_span: float = 0.0
    marks: tuple[tuple[float, str], ...] = ()
    levels: tuple[tuple[float, str], ...] = ()  # (y, words) of horizontal lines, such as what must be passed
    interval: str = INTERVAL  # what low and high of its curves are
    note: str = ""
    view: str = ""
    other: str = ""


@dataclass(frozen=True, kw_only=True)
class Panels:
    """Small pictures side by side that share their curves' looks and one legend: the i-th curve of each is of the same
    model, and empty where there is none."""

    name: str
    title: str
    alt: str
    panels: tuple[Lines, ...]
    note: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the curves."""
        return tuple(line.label for line in self.panels[0].lines)


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
    """Panels with the same axes and the same colours from low to high, which stand out most."""

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


Picture = Lines | Panels | HeatMaps
Block = Text | Table | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """folded: what a page shows on a click only, such as definitions."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


PARTED = " · "  # between the parts of a verdict
State = Literal["reads", "partly", "none", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far the context of one model reaches, in a line.

    label: the model, with what was exchanged. line: "demonstrably uses its last 64 tokens; ...". parts: each in few
    words, ("uses", "64, not 128"), which lists show in its place. state: whether every part is sure of the training
    window or beyond, of less, one fails at its shortest length, or nobody can say from so few documents.
    """

    label: str
    line: str
    parts: tuple[tuple[str, str], ...]
    state: State

    @property
    def short(self) -> str:
        """Its parts in a line, or the line where there are none."""
        return PARTED.join(f"{name} {words}" for name, words in self.parts) or self.line


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report. finding: what came out, in a few sentences, the first of which is the page's headline. title: what it
    is about. verdicts: one a row of what was measured. summary: what else a newcomer should take away. facts: what was
    run, label and value. command: how to run it again. cells: of its parts, name and command."""

    title: str
    summary: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]]
    command: str
    finding: Sequence[str] = ()
    verdicts: Sequence[Verdict] = ()
    cells: Sequence[tuple[str, str]] = ()
