"""Curves and heat maps as PNG and SVG, by matplotlib. The same blocks give the same bytes: no dates, ids by a fixed
salt, and letters as outlines, so that a picture looks the same wherever it is opened."""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from coca_train.report.blocks import HeatMap, HeatMaps, Line, Lines, Picture
from coca_train.report.render import scales
from coca_train.report.render.contents import PAPER
from coca_train.report.render.scales import COLOURS, RAMP, ground, hex_of, ink_on, tick_text, ticks, x_ticks

SALT = "coca_train"  # of the ids inside an SVG
DPI = 140
X_TICKS, Y_TICKS = 10, 9
OURS, THEIRS = ("-", "-."), ("--", ":")  # lines of the first seven curves, of the next
SQUARE = 0.62  # [inch]
LETTER = 0.07  # of a name [inch]
PANELS_A_ROW = 3  # heat maps
CURVES_A_ROW = 4  # of panels with a curve each
HALF_A_PANEL = 18  # characters of a mark's words in a panel of one curve
ABOVE = 11  # [points] a line of words above a panel
DOTTED = (0, (2, 2))
TITLE = 36  # characters of a line of their titles
MARK = "#c2185b"  # what is drawn at the training window


def picture(block: Picture) -> dict[str, bytes]:
    """Return PNG and SVG by suffix."""
    # parse_math off: a `$` in a model's name is no formula.
    with matplotlib.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "path", "text.parse_math": False}):
        if isinstance(block, HeatMaps):
            sheet = _heat_maps(block)
        else:
            drawn = replace(block, lines=block.lines[: block.n_shown])  # nobody can show the others on paper
            sheet = _small_multiples(drawn) if scales.needs_panels(drawn) else _together(drawn)
            if block.not_drawn:
                sheet.supxlabel("\n".join(filter(None, [sheet.get_supxlabel(), block.not_drawn])), fontsize=10)
        return {"png": _saved(sheet, "png"), "svg": _saved(sheet, "svg")}


def _saved(sheet: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    sheet.savefig(buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _sheet(
    title: str, size: tuple[float, float], n: int = 1, columns: int = 1, fontsize: int = 14
) -> tuple[Figure, list[Axes]]:
    """Return a figure and n axes on it, row by row. size: [inches]"""
    sheet = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(sheet)
    sheet.suptitle(title, fontsize=fontsize, fontweight="bold")
    axes = sheet.subplots(math.ceil(n / columns) or 1, columns, squeeze=False).ravel().tolist()
    for one in axes[n:]:
        one.set_visible(False)
    return sheet, axes[:n]


def _together(block: Lines) -> Figure:
    sheet, (axes,) = _sheet(block.title, (10, 5.6 + 0.22 * math.ceil(len(block.lines) / 3)))
    _curves(axes, block, range(len(block.lines)), X_TICKS, Y_TICKS, room=80)
    axes.set(xlabel=block.x_label, ylabel=block.y_label)
    if axes.lines:
        sheet.legend(loc="outside lower center", ncols=3, fontsize=9.5, frameon=False, handlelength=3.6)
    return sheet


def _small_multiples(block: Lines) -> Figure:
    """Draw each curve with its interval in a panel of its own, all others in grey, one axis for all."""
    columns = min(CURVES_A_ROW, len(block.lines))
    size = 12, 1.1 + 2.1 * math.ceil(len(block.lines) / columns)
    sheet, axes = _sheet(block.title, size, len(block.lines), columns)
    for index, (one, line) in enumerate(zip(axes, block.lines, strict=True)):
        _curves(one, block, [index], X_TICKS // 2, Y_TICKS // 2, room=HALF_A_PANEL, markersize=4)
        one.tick_params(labelsize=8)
        one.set_title(textwrap.fill(_label(line), TITLE), fontsize=9.5, pad=_title_pad(block))
    unsaid = [f"dotted: {words}" for _, words in block.marks if len(words) > HALF_A_PANEL]
    sheet.supxlabel("; ".join([block.x_label, *unsaid]), fontsize=10)
    sheet.supylabel(block.y_label, fontsize=10)
    return sheet


def _title_pad(block: Lines) -> float:
    """Return what the words above a panel take [points]."""
    return 4 + ABOVE * len(block.marks)


def _curves(
    axes: Axes, block: Lines, curves: Sequence[int], n_x: int, n_y: int, room: int, markersize: float = 6
) -> None:
    """Draw these curves, the others in grey; the training window with its words above it; what must be passed;
    and at the edges what leaves the picture.

    n_x, n_y: ticks at most. room: letters that fit into half of the width; longer words give way to the value.
    """
    for index, line in enumerate(block.lines):
        if index not in curves:
            axes.plot(line.x, [y if math.isfinite(y) else math.nan for y in line.y], color="0.86", linewidth=0.9)
    for index in curves:
        _curve(axes, block.lines[index], index, markersize)
    _scale(axes, block, n_x, n_y)
    left, right = axes.transData.transform([(end, 1.0) for end in axes.get_xlim()])[:, 0]
    for row, (value, words) in enumerate(reversed(block.marks)):
        axes.axvline(value, color=MARK, linewidth=1.2, linestyle=DOTTED)
        aside = "left" if axes.transData.transform((value, 1.0))[0] < (left + right) / 2 else "right"
        place = {"xy": (value, 1.0), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        said = words if len(words) <= room else tick_text(value)
        axes.annotate(said, **place, xytext=(0, 2 + ABOVE * row), color=MARK, fontsize=8, ha=aside, va="bottom")
    for value, _ in block.levels:
        axes.axhline(value, color="0.25", linewidth=1.1, linestyle=(0, (6, 4)))
    for point in scales.find_beyond(block, curves):
        line = block.lines[point.curve]
        axes.annotate(
            "▲" if point.above else "▼",
            xy=(point.x, float(point.above)),
            xycoords=("data", "axes fraction"),
            xytext=(-8 * point.n_before, 0),
            textcoords="offset points",
            color=COLOURS[scales.look(line.look_index(point.curve))[0]],
            fontsize=9,
            ha="center",
            va="top" if point.above else "bottom",
            annotation_clip=False,
        )


def _scale(axes: Axes, block: Lines, n_x: int, n_y: int) -> None:
    """Set limits and ticks as on the page. n_x, n_y: ticks at most."""
    x_limits, y_limits = scales.axis_limits(block)
    kinds = {"xscale": "log" if block.x_log else "linear", "yscale": "log" if block.y_log else "linear"}
    axes.set(**kinds, xlim=x_limits, ylim=y_limits)
    places = x_ticks(block, *x_limits, n_x)
    axes.set_xticks(places, [tick_text(t) for t in places])
    places = ticks(*y_limits, block.y_log, n_y)
    axes.set_yticks(places, [tick_text(t) for t in places])
    axes.minorticks_off()
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(line: Line) -> str:
    return f"{line.label} ({PAPER})" if line.theirs else line.label


def _curve(axes: Axes, line: Line, index: int, markersize: float) -> None:
    """Draw the index-th curve; points that are not finite are left out, and not every one of many has a marker."""
    number, marker, kind = scales.look(line.look_index(index))
    colour, dash = COLOURS[number], (THEIRS if line.theirs else OURS)[kind]
    x, y, low, high, least, most = np.array(list(line.points()) or np.empty((0, 6)), dtype=float).T  # None becomes NaN
    finite = np.isfinite(y)
    every = math.ceil(len(x) / scales.MARKERS_A_LINE) or 1
    axes.plot(
        x[finite],
        y[finite],
        label=_label(line),
        markevery=every,
        color=colour,
        marker=marker,
        linestyle=dash,
        markersize=markersize,
        linewidth=1.8,
        markerfacecolor=colour if dash == "-" else "white",  # as on the page
    )
    seeds = finite & np.isfinite(least) & np.isfinite(most)
    if seeds.any():
        axes.vlines(x[seeds], least[seeds], most[seeds], color=colour, linewidth=1.0)
    known = finite & np.isfinite(low) & np.isfinite(high)
    if known.sum() == 1:
        axes.vlines(x[known], low[known], high[known], color=colour, linewidth=1.2)
    elif known.any():
        axes.fill_between(x[known], low[known], high[known], color=colour, alpha=0.18, linewidth=0)


def _heat_maps(block: HeatMaps) -> Figure:
    columns = min(PANELS_A_ROW, len(block.panels)) or 1
    rows = math.ceil(len(block.panels) / columns) or 1
    wide = max((len(panel.x_names) for panel in block.panels), default=1)
    high = max((len(panel.y_names) for panel in block.panels), default=1)
    named = max((len(name) for panel in block.panels for name in panel.y_names), default=0) * LETTER
    size = (columns * (SQUARE * wide + max(0.9, named + 0.4)) + 0.4, rows * (SQUARE * 0.75 * high + 1.0) + 0.5)
    sheet, axes = _sheet(block.title, size, len(block.panels), columns)
    for one, panel in zip(axes, block.panels, strict=True):
        _heat_map(one, block, panel)
    if any(panel.mark_after_x is not None for panel in block.panels):
        sheet.supxlabel("vertical line: end of the training window", fontsize=9, color=MARK)
    return sheet


def _image(axes: Axes, block: HeatMaps, panel: HeatMap) -> None:
    colours = LinearSegmentedColormap.from_list("ramp", [hex_of(colour) for colour in RAMP])
    numbers = [
        [math.nan if value is None or (i, j) in panel.doubtful else value for j, value in enumerate(row)]
        for i, row in enumerate(panel.values)
    ]
    axes.imshow(numbers, cmap=colours, vmin=block.low, vmax=block.high, aspect="auto")


def _heat_map(axes: Axes, block: HeatMaps, panel: HeatMap) -> None:
    _image(axes, block, panel)
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            colour = None if (i, j) in panel.doubtful else ground(value, block.low, block.high)
            ink = hex_of(ink_on(colour)) if colour else "0.4"
            text = "–" if value is None else block.form.format(value)
            axes.text(j, i, text, ha="center", va="center", fontsize=9, color=ink)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xticks(range(len(panel.x_names)), panel.x_names, fontsize=9)
    if any(len(name) * LETTER > SQUARE for name in panel.x_names):  # they would run into each other
        axes.tick_params(axis="x", labelrotation=40)
    axes.set_yticks(range(len(panel.y_names)), panel.y_names, fontsize=9)
    axes.set_xlabel(block.x_label, fontsize=10)
    axes.set_ylabel(block.y_label, fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if panel.mark_after_x is not None:
        axes.axvline(panel.mark_after_x - 0.5, color=MARK, linewidth=3)
