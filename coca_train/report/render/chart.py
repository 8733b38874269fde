"""Curves as inline SVG that takes its colours from the page: one drawing for wide screens, one for narrow ones, and
small multiples where intervals would hide one another.

Curves differ in colour, marker and dashes; those that are not ours have open markers and broken lines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from coca_train.report.blocks import Line, Lines
from coca_train.report.render.contents import PAPER, shown
from coca_train.report.render.scales import (
    Beyond,
    Scale,
    apart,
    beyond,
    ends,
    few,
    intervals,
    look,
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
BESIDE = 9  # [px] between two of them at one place
RIGHT = 16  # [px] beside the plot
LINE_HEIGHT = 16


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """kind: its CSS class. width, height, left, bottom [px]. x_ticks, y_ticks: how many at most. letter: the width of
    one, about [px]."""

    kind: str
    width: int
    height: int
    x_ticks: int
    y_ticks: int
    left: int = 54
    bottom: int = 44
    letter: float = 6.3

    def scales(self, block: Lines, top: int) -> tuple[Scale, Scale]:
        """Of x and y."""
        (x_low, x_high), (y_low, y_high) = ends(block)
        return (
            Scale(low=x_low, high=x_high, log=block.x_log, start=self.left, end=self.width - RIGHT),
            Scale(low=y_low, high=y_high, log=block.y_log, start=self.height - self.bottom, end=top),
        )


WIDE = Sheet(kind="wide", width=600, height=380, x_ticks=8, y_ticks=8)
NARROW = Sheet(kind="narrow", width=340, height=216, x_ticks=5, y_ticks=6, left=48, bottom=40, letter=5.8)
PART, NARROW_PART = (  # of a picture of several panels
    Sheet(kind="wide", width=300, height=200, x_ticks=6, y_ticks=5, left=46, bottom=24),
    Sheet(kind="narrow", width=176, height=120, x_ticks=3, y_ticks=4, left=38, bottom=22, letter=5.3),
)
PANEL = Sheet(kind="panel", width=220, height=152, x_ticks=4, y_ticks=3, left=44, bottom=22, letter=5.3)


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
    """All curves; where their intervals would hide one another, a curve's is there when it is pointed at."""
    x, y = sheet.scales(block, LINE_HEIGHT * (2 + len(block.marks)))
    middle = (x.start + x.end) / 2
    words = (
        f'<text class="label" x="{middle}" y="{sheet.height - 6}" text-anchor="middle">{escape(block.x_label)}</text>'
        f'<text class="label" x="2" y="13">{escape(block.y_label)}</text>'
    )
    around = f"{_around(block, sheet, x, y)}{words}{''.join(_marks(block, sheet, x, y, above=1))}"
    return _svg(
        _kind(block, sheet), sheet, block.alt, f"clip-{block.name}-{sheet.kind}", (x, y), around, _all(block, x, y)
    )


def part(name: str, block: Lines, sheet: Sheet) -> str:
    """One panel of several: its curves and what must be passed; what its axes are is said around it. name: of all."""
    x, y = sheet.scales(block, LINE_HEIGHT * len(block.marks) + 10)
    around = _around(block, sheet, x, y) + "".join(_marks(block, sheet, x, y))
    clip = f"clip-{name}-{block.name}-{sheet.kind}"
    return _svg(_kind(block, sheet), sheet, block.alt, clip, (x, y), around, _all(block, x, y))


def multiples(block: Lines) -> Iterator[tuple[str, str]]:
    """(the curve's own look, its panel) of every curve: it and its interval, all others grey behind it, one axis."""
    x, y = PANEL.scales(block, LINE_HEIGHT * len(block.marks) + 8)
    behind = f"behind-{block.name}"
    others = "".join(f'<path class="other" d="{path}"/>' for line in block.lines if (path := _path(line, x, y)))
    around = _around(block, PANEL, x, y) + "".join(_marks(block, PANEL, x, y))
    for index, line in enumerate(block.lines):
        # Drawn once, and shown again in every panel: of 25 curves that is 25 paths and not 625.
        shared = f'<g id="{behind}">{others}</g>' if index == 0 else f'<use href="#{behind}"/>'
        alt = f"{line.label}: {block.y_label} against {block.x_label}, with its interval"
        curve = _curve(line, index, x, y, beyond(block, [index]))
        panel = _svg("panel", PANEL, alt, f"clip-{block.name}-{index}", (x, y), around, shared + curve)
        yield swatch(line.place(index), line.theirs), panel


def _kind(block: Lines, sheet: Sheet) -> str:
    return f"{sheet.kind}{' hushed' if apart(block) else ''}"


def _all(block: Lines, x: Scale, y: Scale) -> str:
    outside = beyond(block)
    return "".join(_curve(line, index, x, y, outside) for index, line in enumerate(block.lines))


def _around(block: Lines, sheet: Sheet, x: Scale, y: Scale) -> str:
    """Axes, and what must be passed."""
    levels = "".join(f'<path class="level" d="M{x.start} {y(v):.1f}H{x.end}"/>' for v, _ in block.levels if y.holds(v))
    return "".join(_axes(block, sheet, x, y)) + levels


def _svg(kind: str, sheet: Sheet, alt: str, clip: str, scales: tuple[Scale, Scale], around: str, inside: str) -> str:
    """around: axes and words. inside: what ends where the plot does."""
    x, y = scales
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {sheet.width} {sheet.height}" role="img" '
        f'aria-label="{escape(alt)}"><clipPath id="{clip}"><rect x="{x.start}" y="{y.end - 6}" '
        f'width="{x.end - x.start + 6}" height="{y.start - y.end + 12}"/></clipPath>'
        f'{around}<g clip-path="url(#{clip})">{inside}</g></svg>'
    )


def _axes(block: Lines, sheet: Sheet, x: Scale, y: Scale) -> Iterator[str]:
    for tick in ticks(y.low, y.high, y.log, sheet.y_ticks):
        place = f"{y(tick):.1f}"
        yield f'<path class="grid" d="M{x.start} {place}H{x.end}"/>'
        yield f'<text x="{x.start - 8}" y="{place}" dy=".35em" text-anchor="end">{tick_text(tick)}</text>'
    for tick in x_ticks(block, x.low, x.high, sheet.x_ticks):
        place = f"{x(tick):.1f}"
        yield f'<path class="tick" d="M{place} {y.start}v5"/>'
        yield f'<text x="{place}" y="{y.start + 19}" text-anchor="middle">{tick_text(tick)}</text>'
    yield f'<path class="axis" d="M{x.start} {y.start}H{x.end}"/>'


def _marks(block: Lines, sheet: Sheet, x: Scale, y: Scale, above: int = 0) -> Iterator[str]:
    """Dotted vertical lines, their words above the plot, each on a line of its own. above: lines that stand over them.

    Words that have no room on either side give way to the value.
    """
    for index, (value, words) in enumerate(block.marks):
        if not x.holds(value):
            continue
        place, height = x(value), LINE_HEIGHT * (1 + above + index) - 3
        room = max(sheet.width - place, place) - 5
        said = words if sheet.letter * len(words) <= room else tick_text(value)
        anchor, shift = ("start", 5) if place + 5 + sheet.letter * len(said) <= sheet.width else ("end", -5)
        yield f'<path class="mark" d="M{place:.1f} {height - 10}V{y.start}"/>'
        yield f'<text class="words" x="{place + shift:.1f}" y="{height}" text-anchor="{anchor}">{escape(said)}</text>'


def _curve(line: Line, index: int, x: Scale, y: Scale, outside: Sequence[Beyond]) -> str:
    """outside: points of all curves that leave the picture."""
    classes, marker, dashes = looks(line.place(index), line.theirs)
    points = [p for p in zip(line.x, line.y, intervals(line), strict=True) if x.holds(p[0]) and y.holds(p[1])]
    parts = [_band(line, x, y), _strokes(line, x, y)]
    if points:
        parts.append(f'<path class="stroke" d="{_path(line, x, y)}" stroke-dasharray="{dashes}"/>')
    for a, b, (low, high) in few([p for p in points if y.low <= p[1] <= y.high]):
        between = "" if low is None or high is None else f" ({shown(low)} to {shown(high)})"
        place = f"translate({x(a):.1f} {y(b):.1f})"
        title = f"<title>{escape(f'{_at(line, a, b)}{between}')}</title>"
        parts.append(f'<path class="dot" transform="{place}" d="{marker}">{title}</path>')
    for each in (each for each in outside if each.curve == index):
        place = f"translate({x(each.x) - BESIDE * each.beside:.1f} {y.end if each.above else y.start:.1f})"
        title = f"<title>{escape(f'{_at(line, each.x, each.y)}, beyond the picture')}</title>"
        parts.append(f'<path class="beyond" transform="{place}" d="{UP if each.above else DOWN}">{title}</path>')
    return f'<g class="curve {classes}" data-line="{index}">{"".join(parts)}</g>'


def _at(line: Line, x: float, y: float) -> str:
    return f"{line.label}{f' ({PAPER})' if line.theirs else ''} at {shown(x)}: {shown(y)}"


def _strokes(line: Line, x: Scale, y: Scale) -> str:
    """From the lowest to the highest seed at every point."""
    points = zip(line.x, line.least or (), line.most or (), strict=False)
    known = [(a, low, high) for a, low, high in points if low is not None and high is not None]
    drawn = [f"M{x(a):.1f} {y(low):.1f}V{y(high):.1f}" for a, low, high in known if all(map(y.holds, (low, high)))]
    return f'<path class="seeds" d="{"".join(drawn)}"/>' if drawn else ""


def _path(line: Line, x: Scale, y: Scale) -> str:
    """Through its points; "" without any."""
    points = [f"{x(a):.1f} {y(b):.1f}" for a, b in zip(line.x, line.y, strict=True) if x.holds(a) and y.holds(b)]
    return "M" + "L".join(points) if points else ""


def _band(line: Line, x: Scale, y: Scale) -> str:
    """The interval between low and high, where both are known; of a point alone, a stroke."""
    known = [
        (x(a), y(low), y(high))
        for a, (low, high) in zip(line.x, intervals(line), strict=True)
        if low is not None and high is not None and x.holds(a) and y.holds(low) and y.holds(high)
    ]
    if len(known) < 2:
        return "".join(f'<path class="whisker" d="M{a:.1f} {low:.1f}V{high:.1f}"/>' for a, low, high in known)
    there = [f"{a:.1f} {high:.1f}" for a, _, high in known]
    back = [f"{a:.1f} {low:.1f}" for a, low, _ in reversed(known)]
    return f'<path class="band" d="M{"L".join(there + back)}Z"/>'
