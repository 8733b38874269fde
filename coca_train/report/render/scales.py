"""From figures to places and colours: limits and ticks of an axis as people would choose them, where a value lies, the
colours of curves, and those of a heat map with the ink that can be read on each.

Curves: colours that colour-blind readers can tell apart (Okabe and Ito, 2008). Heat maps: from light to dark as the
figure rises; luminance and contrast as WCAG 2.2 defines them (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from coca_train.report.blocks import Lines
from coca_train.report.render.contents import format_number

T = TypeVar("T")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"  # matplotlib's letters

PADDING = 0.04  # of the span of an axis, at either end
TIMES_INTERVAL = 2.0  # of the widest interval, what an axis shows at least
LEAST_RATIO = 0.1  # the same where no interval is known, of the middle figure
TOGETHER = 3  # curves whose intervals can be told apart in one picture
FEW_POINTS = 8  # of which every second or third has a tick, however small the picture
MARKERS_A_LINE = 16
KIBI = 1024


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values low … high to the places start … end [px]."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def holds(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)


def limits(
    values: Sequence[float], log: bool, fixed: tuple[float | None, float | None] = (None, None), span: float = 0.0
) -> tuple[float, float]:
    """Return the limits of an axis that shows all finite values between its fixed ends, and is never empty.

    span: it shows at least as much, of logarithms where `log`; a fixed end does not move, the other makes up for it.
    """
    bottom, top = (None if end is None or (log and end <= 0) else end for end in fixed)
    lowest, highest = -math.inf if bottom is None else bottom, math.inf if top is None else top
    ends = [end for end in (bottom, top) if end is not None]
    inside = [v for v in (*values, *ends) if math.isfinite(v) and lowest <= v <= highest and (v > 0 or not log)]
    usable = inside or [1.0]
    low, high = (math.log(v) if log else v for v in (min(usable), max(usable)))
    margin = (high - low) * PADDING or max(abs(low), 1.0) * PADDING
    down, up = (margin if end is None else 0.0 for end in (bottom, top))
    if free := 2 - len(ends):
        more = max(0.0, span - (high + up - low + down)) / free
        down, up = (size + more if end is None else 0.0 for size, end in ((down, bottom), (up, top)))
    low, high = (math.exp(v) if log else v for v in (low - down, high + up))
    low, high = low if bottom is None else bottom, high if top is None else top
    return (low, high) if high > low else (low, low * 2 if log else low + 1)


def least_span(block: Lines) -> float:
    """Return how much of y an axis shows at least, of logarithms where it is logarithmic: noise makes no slope.

    TIMES_INTERVAL times the widest interval that lies inside it, so that a change within an interval never takes more
    than half of the height; where no interval is known, LEAST_RATIO of the middle figure.
    """
    bottom, top = block.y_limits
    points = [point for line in block.lines for point in line.points() if math.isfinite(point[1])]
    inside = [p for p in points if (bottom is None or bottom <= p[1]) and (top is None or p[1] <= top)]
    widths = [
        math.log(high / low) if block.y_log else high - low
        for _, _, low, high, *_ in inside
        if low is not None and high is not None and math.isfinite(high - low) and (low > 0 or not block.y_log)
    ]
    if widths:
        return TIMES_INTERVAL * max(widths)
    ys = sorted(point[1] for point in inside)
    return math.log(1 + LEAST_RATIO) if block.y_log else LEAST_RATIO * abs(ys[len(ys) // 2]) if ys else 0.0


def needs_panels(block: Lines) -> bool:
    """Whether each curve needs a panel of its own for its interval to be seen: they would hide one another."""
    return sum(line.low is not None for line in block.lines) > TOGETHER


def thin_out(points: Sequence[T]) -> Sequence[T]:
    """Return those points of a curve that get a marker: of many, not every one."""
    return points[:: math.ceil(len(points) / MARKERS_A_LINE) or 1]


class Beyond(NamedTuple):
    """A point that leaves the picture. curve: its index. above: at which edge it is shown. n_before: how many others
    are shown at that place before it."""

    curve: int
    x: float
    y: float
    above: bool
    n_before: int


def find_beyond(block: Lines, curves: Sequence[int]) -> list[Beyond]:
    """Return the points of these curves that lie above or below the picture, infinity too. curves: their indices."""
    found, (low, high) = list[Beyond](), axis_limits(block)[1]
    for index in curves:
        points = zip(block.lines[index].x, block.lines[index].y, strict=True)
        outside = [(x, y) for x, y in points if (y > high or y < low) and (x > 0 or not block.x_log)]
        for x, y in thin_out(outside):
            n_before = sum((each.x, each.above) == (x, y > high) for each in found)
            found.append(Beyond(index, x, y, y > high, n_before))
    return found


def ticks(low: float, high: float, log: bool, wanted: int) -> list[float]:
    """Return at most about `wanted` round numbers between low and high."""
    if not log:
        return _linear_ticks(low, high, wanted)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        candidates = (digit * 10.0**power for power in powers for digit in digits)
        round_numbers = [t for t in candidates if low <= t <= high]
        if len(round_numbers) <= wanted:
            return round_numbers if len(round_numbers) > 2 else _linear_ticks(low, high, wanted)
    return round_numbers[:: math.ceil(len(round_numbers) / wanted)]


def _linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / max(wanted - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def x_ticks(block: Lines, low: float, high: float, wanted: int) -> list[float]:
    """Return the curves' own points where those are few, of too many those that double; else round numbers."""
    points = sorted({x for x in _xs(block) if low <= x <= high})
    if not block.x_log or len(points) > max(2 * wanted, FEW_POINTS):
        return ticks(low, high, block.x_log, wanted)
    if len(points) > wanted:
        doubling = [x for x in points if math.log2(points[-1] / x).is_integer()]
        points = doubling if len(doubling) > 2 else points
    every = math.ceil(len(points) / wanted) or 1
    return points[::-1][::every][::-1]


def tick_text(value: float) -> str:
    """Write 512, 4,096, 16k (of 1,024), 0.25, 2e6."""
    if 10_000 <= abs(value) < 1e9 and value % KIBI == 0:
        return f"{value / KIBI:,.0f}k"
    if abs(value) >= 1e6:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    return format_number(value)


def axis_limits(block: Lines) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the limits of x and y: all curves, their intervals and seeds, the marks and the levels."""
    xs = [*_xs(block), *(x for x, _ in block.marks)]
    ys = [y for line in block.lines for _, *bounds in line.points() for y in bounds if y is not None]
    y_limits = limits([*ys, *(y for y, _ in block.levels)], block.y_log, block.y_limits, least_span(block))
    return limits(xs, block.x_log), y_limits


def _xs(block: Lines) -> list[float]:
    return [x for line in block.lines for x in line.x]


def look(index: int) -> tuple[int, str, int]:
    """Return for the index-th curve which of COLOURS it has, its marker, and which of two kinds of line."""
    turn, colour = divmod(index, len(COLOURS))
    return colour, MARKERS[(colour + turn) % len(MARKERS)], turn % 2


Rgb = tuple[int, int, int]

RAMP: tuple[Rgb, ...] = ((247, 250, 253), (203, 222, 240), (116, 175, 214), (36, 111, 176), (9, 45, 98))
DARK_RAMP: tuple[Rgb, ...] = ((30, 36, 45), (28, 58, 94), (35, 98, 158), (86, 160, 218), (190, 225, 250))  # dark pages
INKS: tuple[Rgb, ...] = ((255, 255, 255), (0, 0, 0))  # one of the two has at least 4.5 on any colour


def ramp(share: float, stops: Sequence[Rgb] = RAMP) -> Rgb:
    """Return the colour at `share` (0 to 1, clamped) of the way from low to high."""
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    index = min(int(place), len(stops) - 2)
    pairs = zip(stops[index], stops[index + 1], strict=True)
    red, green, blue = (round(low + (high - low) * (place - index)) for low, high in pairs)
    return red, green, blue


def square_style(value: float, low: float, high: float) -> str:
    """Return the CSS of a figure's square, in light and in dark; "" where the figure is not finite."""
    grounds = [ground(value, low, high, stops) for stops in (RAMP, DARK_RAMP)]
    known = [colour for colour in grounds if colour is not None]
    return f"background:{light_dark(*known)};color:{light_dark(*map(ink_on, known))}" if known else ""


def light_dark(light: Rgb, dark: Rgb) -> str:
    """Return a colour of CSS: one on light pages, one on dark ones."""
    return f"light-dark({hex_of(light)}, {hex_of(dark)})"


def ground(value: float | None, low: float, high: float, stops: Sequence[Rgb] = RAMP) -> Rgb | None:
    """Return the colour of a figure's square on a ramp from low to high; None where the figure is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return ramp((value - low) / (high - low) if high > low else 0.0, stops)


def ink_on(colour: Rgb) -> Rgb:
    return max(INKS, key=lambda ink: contrast(ink, colour))


def hex_of(colour: Rgb) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of two colours, 1 (the same) to 21 (black on white)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Rgb) -> float:
    shares = [channel / 255 for channel in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
