"""Curves as inline SVG that takes its colours from the page: one drawing for wide screens, one for narrow ones.

Curves differ in colour, marker and dashes; those that are not ours have open markers and broken lines.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from coca_train.report.blocks import Line, Lines
from coca_train.report.render.contents import PAPER, shown
from coca_train.report.render.scales import Scale, ends, look, tick_text, ticks, x_ticks

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
MARKERS_A_LINE = 16
LEFT, RIGHT, BOTTOM = 54, 16, 44  # [px] around the plot
LINE_HEIGHT = 16


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """kind: its CSS class. width, height [px]. x_ticks, y_ticks: how many at most."""

    kind: str
    width: int
    height: int
    x_ticks: int
    y_ticks: int


WIDE = Sheet(kind="wide", width=840, height=440, x_ticks=10, y_ticks=9)
NARROW = Sheet(kind="narrow", width=328, height=330, x_ticks=5, y_ticks=7)


def looks(index: int, theirs: bool) -> tuple[str, str, str]:
    """(CSS classes, marker's path, dashes) of the index-th curve."""
    colour, marker, kind = look(index)
    return f"c{colour}{' theirs' if theirs else ''}", SYMBOLS[marker], (THEIRS if theirs else OURS)[kind]


def swatch(index: int, theirs: bool) -> str:
    """The look of a curve, for the legend."""
    classes, marker, dashes = looks(index, theirs)
    path = f'<path class="stroke" d="M1 8H37" stroke-dasharray="{dashes}"/>'
    return (
        f'<svg class="swatch {classes}" width="38" height="16" viewBox="0 0 38 16" aria-hidden="true">{path}'
        f'<path class="dot" transform="translate(19 8)" d="{marker}"/></svg>'
    )


def chart(block: Lines, sheet: Sheet) -> str:
    top = LINE_HEIGHT * (2 + len(block.marks))
    (x_low, x_high), (y_low, y_high) = ends(block)
    x = Scale(low=x_low, high=x_high, log=block.x_log, start=LEFT, end=sheet.width - RIGHT)
    y = Scale(low=y_low, high=y_high, log=block.y_log, start=sheet.height - BOTTOM, end=top)
    clip = f"clip-{block.name}-{sheet.kind}"
    drawn = "".join(_curve(line, index, x, y, block.shows_intervals) for index, line in enumerate(block.lines))
    return (
        f'<svg class="chart {sheet.kind}" viewBox="0 0 {sheet.width} {sheet.height}" role="img" '
        f'aria-label="{escape(block.alt)}"><clipPath id="{clip}"><rect x="{LEFT}" y="{top - 6}" '
        f'width="{sheet.width - RIGHT - LEFT + 6}" height="{sheet.height - BOTTOM - top + 12}"/></clipPath>'
        f"{''.join(_axes(block, sheet, x, y))}{''.join(_marks(block, x, y))}"
        f'<g clip-path="url(#{clip})">{drawn}</g></svg>'
    )


def _axes(block: Lines, sheet: Sheet, x: Scale, y: Scale) -> Iterator[str]:
    for tick in ticks(y.low, y.high, y.log, sheet.y_ticks):
        place = f"{y(tick):.1f}"
        yield f'<path class="grid" d="M{LEFT} {place}H{x.end}"/>'
        yield f'<text x="{LEFT - 8}" y="{place}" dy=".35em" text-anchor="end">{tick_text(tick)}</text>'
    for tick in x_ticks(block, x.low, x.high, sheet.x_ticks):
        place = f"{x(tick):.1f}"
        yield f'<path class="tick" d="M{place} {y.start}v5"/>'
        yield f'<text x="{place}" y="{y.start + 19}" text-anchor="middle">{tick_text(tick)}</text>'
    yield f'<path class="axis" d="M{LEFT} {y.start}H{x.end}"/>'
    middle = (x.start + x.end) / 2
    yield f'<text class="label" x="{middle}" y="{sheet.height - 6}" text-anchor="middle">{escape(block.x_label)}</text>'
    yield f'<text class="label" x="2" y="13">{escape(block.y_label)}</text>'


def _marks(block: Lines, x: Scale, y: Scale) -> Iterator[str]:
    """Dotted vertical lines, their words above the plot, each on a line of its own."""
    for index, (value, words) in enumerate(block.marks):
        if not x.holds(value):
            continue
        place, height = x(value), LINE_HEIGHT * (2 + index) - 3
        anchor, shift = ("start", 5) if place < (x.start + x.end) / 2 else ("end", -5)
        yield f'<path class="mark" d="M{place:.1f} {height - 10}V{y.start}"/>'
        yield f'<text class="words" x="{place + shift:.1f}" y="{height}" text-anchor="{anchor}">{escape(words)}</text>'


def _curve(line: Line, index: int, x: Scale, y: Scale, bands: bool) -> str:
    classes, marker, dashes = looks(index, line.theirs)
    points = [(a, b) for a, b in zip(line.x, line.y, strict=True) if x.holds(a) and y.holds(b)]
    path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
    parts = [_band(line, x, y)] if bands else []
    if points:
        parts.append(f'<path class="stroke" d="M{path}" stroke-dasharray="{dashes}"/>')
    for a, b in points[:: math.ceil(len(points) / MARKERS_A_LINE) or 1]:
        hover = f"{line.label}{f' ({PAPER})' if line.theirs else ''} at {shown(a)}: {shown(b)}"
        place = f"translate({x(a):.1f} {y(b):.1f})"
        parts.append(f'<path class="dot" transform="{place}" d="{marker}"><title>{escape(hover)}</title></path>')
    return f'<g class="{classes}" data-line="{index}">{"".join(parts)}</g>'


def _band(line: Line, x: Scale, y: Scale) -> str:
    """The interval between low and high, where both are known."""
    if line.low is None or line.high is None:
        return ""
    known = [
        (x(a), y(low), y(high))
        for a, low, high in zip(line.x, line.low, line.high, strict=True)
        if low is not None and high is not None and x.holds(a) and y.holds(low) and y.holds(high)
    ]
    if len(known) < 2:
        return ""
    there = [f"{a:.1f} {high:.1f}" for a, _, high in known]
    back = [f"{a:.1f} {low:.1f}" for a, low, _ in reversed(known)]
    return f'<path class="band" d="M{"L".join(there + back)}Z"/>'
