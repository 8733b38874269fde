"""Curves as inline SVG that takes its colours from the page: where everything lies; `blocks.html` writes the elements.

There is a drawing for wide screens and one for narrow ones, and small multiples where intervals would hide one another.
Curves differ in colour, marker and dashes; those that are not ours have open markers and broken lines.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coca_train.report.blocks import Line, Lines
from coca_train.report.render.contents import PAPER, format_number
from coca_train.report.render.scales import (
    Beyond,
    Scale,
    axis_limits,
    find_beyond,
    look,
    needs_panels,
    thin_out,
    tick_text,
    ticks,
    x_ticks,
)

SYMBOLS = {  # matplotlib's letters, drawn around (0, 0)
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "s": "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "D": "M0 -5L5 0L0 5L-5 0Z",
    "^": "M0 -4.8L4.6 3.6H-4.6Z",
    "v": "M0 4.8L4.6 -3.6H-4.6Z",
    "P": "M-1.7 -4.6H1.7V-1.7H4.6V1.7H1.7V4.6H-1.7V1.7H-4.6V-1.7H-1.7Z",
    "X": "M-4.2 -2.2L-2.2 -4.2L0 -2L2.2 -4.2L4.2 -2.2L2 0L4.2 2.2L2.2 4.2L0 2L-2.2 4.2L-4.2 2.2L-2 0Z",
}
OURS, THEIRS = ("", "9 3 2 3"), ("6 4", "2 3.5")  # dashes of the first seven curves, of the next
UP, DOWN = "M-5 3.5L0 -5L5 3.5Z", "M-5 -3.5L0 5L5 -3.5Z"  # at an edge: a figure beyond it
ARROW_STEP = 9  # [px] between two of them at one place
RIGHT = 16  # [px] to the right of the plot
LINE_HEIGHT = 16


@dataclass(frozen=True)
class Sheet:
    """What a plot is drawn on. kind: its CSS class. width, height, left, bottom [px]. x_ticks, y_ticks: how many at
    most. letter: the width of one, about [px]. labelled: whether the axes' names are inside the drawing."""

    kind: str
    width: int
    height: int
    x_ticks: int
    y_ticks: int
    left: int = 54
    bottom: int = 44
    letter: float = 6.3
    labelled: bool = False


# kind, width, height, x_ticks, y_ticks, left, bottom, letter, labelled
WIDE = Sheet("wide", 600, 380, 8, 8, labelled=True)
NARROW = Sheet("narrow", 340, 216, 5, 6, 48, 40, 5.8, labelled=True)
PANEL = Sheet("panel", 220, 152, 4, 3, 44, 22, 5.3)


class Look(NamedTuple):
    """classes: of CSS. marker: its path. dashes: of its stroke."""

    classes: str
    marker: str
    dashes: str


def looks(index: int, theirs: bool) -> Look:
    """Return the look of the index-th curve."""
    colour, marker, kind = look(index)
    return Look(f"c{colour}{' theirs' if theirs else ''}", SYMBOLS[marker], (THEIRS if theirs else OURS)[kind])


class Mark(NamedTuple):
    """A dotted vertical line with words above the plot. shift: from the line to the words [px]."""

    x: float
    y: float
    words: str
    anchor: str
    shift: int


class Sign(NamedTuple):
    """A symbol at (x, y) with words to hover over."""

    x: float
    y: float
    path: str
    words: str


class Plot:
    """One drawing of curves. x, y: from values to places. All places are in pixels, paths in the syntax of SVG."""

    def __init__(self, block: Lines, sheet: Sheet, clip: str, alt: str = "", curve: int | None = None) -> None:
        """clip: id of what cuts curves off at the plot's edge, unique on the page. curve: the only one that is drawn
        in colour, in front of the others; None: all of them."""
        self.block, self.sheet, self.clip, self.alt = block, sheet, clip, alt or block.alt
        self.shown = range(len(block.lines)) if curve is None else [curve]
        self.kind = f"{sheet.kind} hushed" if curve is None and needs_panels(block) else sheet.kind
        head = LINE_HEIGHT * (len(block.marks) + 2) if sheet.labelled else LINE_HEIGHT * len(block.marks) + 10
        (x_low, x_high), (y_low, y_high) = axis_limits(block)
        self.x = Scale(low=x_low, high=x_high, log=block.x_log, start=sheet.left, end=sheet.width - RIGHT)
        self.y = Scale(low=y_low, high=y_high, log=block.y_log, start=sheet.height - sheet.bottom, end=head)
        self._beyond = find_beyond(block, self.shown)

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        values = x_ticks(self.block, self.x.low, self.x.high, self.sheet.x_ticks)
        return [(self.x(value), tick_text(value)) for value in values]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        values = ticks(self.y.low, self.y.high, self.y.log, self.sheet.y_ticks)
        return [(self.y(value), tick_text(value)) for value in values]

    @property
    def levels(self) -> list[float]:
        """What must be passed."""
        return [self.y(value) for value, _ in self.block.levels if self.y.holds(value)]

    @property
    def marks(self) -> list[Mark]:
        """Each on a line of its own above the plot; words that have no room on either side give way to the value."""
        marks = []
        for row, (value, words) in enumerate(self.block.marks, start=1 + self.sheet.labelled):
            if self.x.holds(value):
                x, width = self.x(value), self.sheet.width
                fits = self.sheet.letter * len(words) <= max(width - x, x) - 5
                words = words if fits else tick_text(value)
                is_left = x + 5 + self.sheet.letter * len(words) <= width
                marks.append(Mark(x, LINE_HEIGHT * row - 3, words, *(("start", 5) if is_left else ("end", -5))))
        return marks

    def path(self, line: Line) -> str:
        """Through its points; "" without any."""
        return self._join((x, y) for x, y in zip(line.x, line.y, strict=True) if self._holds(x, y))

    def seeds(self, line: Line) -> str:
        """From the lowest to the highest seed at every point."""
        return self._verticals((x, least, most) for x, *_, least, most in line.points())

    def whisker(self, line: Line) -> str:
        """The interval of a point alone."""
        known = self._intervals(line)
        return self._verticals(known) if len(known) == 1 else ""

    def band(self, line: Line) -> str:
        """Around the interval, where it is known of two points or more."""
        known = self._intervals(line)
        edge = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
        return f"{self._join(edge)}Z" if len(known) > 1 else ""

    def dots(self, line: Line, marker: str) -> list[Sign]:
        """Markers at its points inside the plot, not at every one of many."""
        inside = [p for p in line.points() if self._holds(p[0], p[1]) and self.y.low <= p[1] <= self.y.high]
        signs = []
        for x, y, low, high, *_ in thin_out(inside):
            between = "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"
            signs.append(Sign(self.x(x), self.y(y), marker, f"{_point_words(line, x, y)}{between}"))
        return signs

    def beyond(self, index: int) -> list[Sign]:
        """Arrows at the edge where points of the index-th curve leave the plot."""
        return [self._arrow(point) for point in self._beyond if point.curve == index]

    def _arrow(self, point: Beyond) -> Sign:
        place = self.x(point.x) - ARROW_STEP * point.n_before, self.y.end if point.above else self.y.start
        words = _point_words(self.block.lines[point.curve], point.x, point.y)
        return Sign(*place, UP if point.above else DOWN, f"{words}, beyond the picture")

    def _holds(self, x: float, *ys: float | None) -> bool:
        return self.x.holds(x) and all(y is not None and self.y.holds(y) for y in ys)

    def _intervals(self, line: Line) -> list[tuple[float, float | None, float | None]]:
        return [(x, low, high) for x, _, low, high, *_ in line.points() if self._holds(x, low, high)]

    def _verticals(self, ends: Iterable[tuple[float, float | None, float | None]]) -> str:
        known = [(x, low, high) for x, low, high in ends if low is not None and high is not None]
        return "".join(
            f"M{self.x(x):.1f} {self.y(low):.1f}V{self.y(high):.1f}"
            for x, low, high in known
            if self._holds(x, low, high)
        )

    def _join(self, points: Iterable[tuple[float, float | None]]) -> str:
        places = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points if y is not None]
        return f"M{'L'.join(places)}" if places else ""


def _point_words(line: Line, x: float, y: float) -> str:
    return f"{line.label}{f' ({PAPER})' if line.theirs else ''} at {format_number(x)}: {format_number(y)}"


def plots(block: Lines) -> list[Plot]:
    """Return the drawings of all curves together: for wide screens and for narrow ones."""
    return [Plot(block, sheet, f"clip-{block.name}-{sheet.kind}") for sheet in (WIDE, NARROW)]


def small_multiples(block: Lines) -> Sequence[Plot]:
    """Return a drawing for each curve with its interval, all others in grey; none where one drawing will do."""
    return [
        Plot(
            block,
            PANEL,
            f"clip-{block.name}-{index}",
            alt=f"{line.label}: {block.y_label} against {block.x_label}, with its interval",
            curve=index,
        )
        for index, line in enumerate(block.lines)
        if needs_panels(block)
    ]
