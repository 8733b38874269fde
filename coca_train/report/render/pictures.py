"""Curves and heat maps as PNG and SVG, by matplotlib. The same blocks give the same bytes: no dates, ids by a fixed
salt, and letters as outlines, so that a picture looks the same wherever it is opened."""

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from coca_train.report.blocks import HeatMap, HeatMaps, Line, Lines, Panels, Picture
from coca_train.report.render import scales
from coca_train.report.render.contents import PAPER, axes_in_words
from coca_train.report.render.scales import COLOURS, RAMP, ground, hex_of, ink_on, tick_text, ticks, x_ticks

SALT = "coca_train"  # of the ids inside an SVG
DPI = 140
SMALL, SMALL_DPI = (3.2, 1.8), 110  # of a thumbnail [inches]
X_TICKS, Y_TICKS = 10, 9
OURS, THEIRS = ("-", "-."), ("--", ":")  # lines of the first seven curves, of the next
SQUARE = 0.62  # [inch]
PANELS_A_ROW = 3
CURVES_A_ROW = 4  # of panels with a curve each
WORDS = 65  # characters of what stands below a column of panels
HALF_A_PANEL = 18  # characters of what stands at a mark of one with a curve
ABOVE = 11  # [points] a line of words above a panel
DOTTED = (0, (2, 2))
TITLE = 36  # characters of a line of their titles
MARK = "#c2185b"  # what is drawn at the training window


def picture(block: Picture) -> dict[str, bytes]:
    """PNG and SVG by suffix."""
    # parse_math off: a `$` in a model's name is no formula.
    with matplotlib.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "path", "text.parse_math": False}):
        if isinstance(block, Panels):
            sheet = _side_by_side(block)
        else:
            sheet = _lines(block) if isinstance(block, Lines) else _heat_maps(block)
        return {"png": _saved(sheet, "png"), "svg": _saved(sheet, "svg")}


def thumbnail(block: Picture) -> bytes:
    """A small PNG of its curves, without words: to be known again by."""
    sheet = Figure(figsize=SMALL, dpi=SMALL_DPI, layout="constrained")
    FigureCanvasAgg(sheet)
    axes = sheet.subplots()
    if isinstance(block, HeatMaps):
        colours = LinearSegmentedColormap.from_list("ramp", [hex_of(colour) for colour in RAMP])
        numbers = [[math.nan if value is None else value for value in row] for row in block.panels[0].values]
        axes.imshow(numbers, cmap=colours, vmin=block.low, vmax=block.high, aspect="auto")
    else:
        lines = block.panels[0] if isinstance(block, Panels) else block
        for value, _ in lines.marks:
            axes.axvline(value, color=MARK, linewidth=1.0, linestyle=DOTTED)
        for index, line in enumerate(lines.lines):
            _curve(axes, line, look(line.place(index), line.theirs) | {"marker": "", "linewidth": 1.6})
        _scaled(axes, lines, X_TICKS, Y_TICKS)
    axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    for patch in (sheet.patch, axes.patch):
        patch.set_alpha(0.0)  # it lies on light pages and on dark ones
    return _saved(sheet, "png", SMALL_DPI)


def _saved(sheet: Figure, kind: str, dpi: int = DPI) -> bytes:
    buffer = io.BytesIO()
    sheet.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _sheet(
    title: str, size: tuple[float, float], rows: int = 1, columns: int = 1, fontsize: int = 14
) -> tuple[Figure, list[Any]]:
    """A figure and its axes, row by row. size: [inches]"""
    sheet = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(sheet)
    sheet.suptitle(title, fontsize=fontsize, fontweight="bold")
    return sheet, sheet.subplots(rows, columns, squeeze=False).ravel().tolist()


def look(index: int, theirs: bool) -> dict[str, Any]:
    """Of the index-th curve, for axes.plot; as in the page, broken lines have open markers."""
    number, marker, kind = scales.look(index)
    colour, dash = COLOURS[number], (THEIRS if theirs else OURS)[kind]
    fill = colour if dash == "-" else "white"
    return {"color": colour, "marker": marker, "linestyle": dash, "markerfacecolor": fill}


def _lines(block: Lines) -> Figure:
    return _panels(block) if scales.apart(block) else _together(block)


def _together(block: Lines) -> Figure:
    sheet, (axes,) = _sheet(block.title, (10, 5.6 + 0.22 * math.ceil(len(block.lines) / 3)))
    for index, line in enumerate(block.lines):
        _curve(axes, line, look(line.place(index), line.theirs))
    _around(axes, block, range(len(block.lines)), X_TICKS, Y_TICKS, room=80)
    axes.set(xlabel=block.x_label, ylabel=block.y_label)
    if axes.lines:
        sheet.legend(loc="outside lower center", ncols=3, fontsize=9.5, frameon=False, handlelength=3.6)
    return sheet


def _side_by_side(block: Panels) -> Figure:
    """Panels of the same curves in different quantities, one legend."""
    columns = min(2, len(block.panels))
    rows = math.ceil(len(block.panels) / columns)
    sheet, axes = _sheet(block.title, (5.5 * columns, 1.2 + 3.0 * rows), rows, columns)
    for one, panel in zip(axes, block.panels, strict=False):
        for index, line in enumerate(panel.lines):
            _curve(one, line, look(line.place(index), line.theirs) | {"markersize": 5})
        _around(one, panel, range(len(panel.lines)), X_TICKS // 2 + 1, Y_TICKS // 2, room=35)
        one.set_title(panel.title, fontsize=11, pad=_above(panel))
        one.set(ylabel=panel.y_label)
    for one in axes[len(block.panels) :]:
        one.set_visible(False)
    known = {text: handle for one in axes for handle, text in zip(*one.get_legend_handles_labels(), strict=True)}
    if known:
        labels = list(known)
        looks = [known[each] for each in labels]
        legend = sheet.legend(looks, labels, loc="outside lower center", ncols=3, fontsize=9.5, frameon=False)
        legend.set_title(textwrap.fill(axes_in_words(block), WORDS * columns), FontProperties(size=9.5))
    return sheet


def _panels(block: Lines) -> Figure:
    """Small multiples: each curve with its interval, all others grey behind it, one axis."""
    columns = min(CURVES_A_ROW, len(block.lines))
    rows = math.ceil(len(block.lines) / columns)
    sheet, axes = _sheet(block.title, (12, 1.1 + 2.1 * rows), rows, columns)
    for index, (one, line) in enumerate(zip(axes, block.lines, strict=False)):
        for other in block.lines:
            one.plot(other.x, [y if math.isfinite(y) else math.nan for y in other.y], color="0.86", linewidth=0.9)
        _curve(one, line, look(line.place(index), line.theirs) | {"markersize": 4})
        _around(one, block, [index], X_TICKS // 2, Y_TICKS // 2, room=HALF_A_PANEL)
        one.tick_params(labelsize=8)
        one.set_title(textwrap.fill(_label(line), TITLE), fontsize=9.5, pad=_above(block))
    for one in axes[len(block.lines) :]:
        one.set_visible(False)
    unsaid = [f"dotted: {words}" for _, words in block.marks if len(words) > HALF_A_PANEL]
    sheet.supxlabel("; ".join([block.x_label, *unsaid]), fontsize=10)
    sheet.supylabel(block.y_label, fontsize=10)
    return sheet


def _around(axes: Any, block: Lines, curves: Sequence[int], n_x: int, n_y: int, room: int) -> None:
    """Axes, the training window with its words above them, what must be passed, and at the edges what of these curves
    leaves the picture. room: letters that half of the width holds; longer words give way to the value."""
    _scaled(axes, block, n_x, n_y)
    left, right = axes.transData.transform([(end, 1.0) for end in axes.get_xlim()])[:, 0]
    for row, (value, words) in enumerate(reversed(block.marks)):
        axes.axvline(value, color=MARK, linewidth=1.2, linestyle=DOTTED)
        aside = "left" if axes.transData.transform((value, 1.0))[0] < (left + right) / 2 else "right"
        place = {"xy": (value, 1.0), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        said = words if len(words) <= room else tick_text(value)
        axes.annotate(said, **place, xytext=(0, 2 + ABOVE * row), color=MARK, fontsize=8, ha=aside, va="bottom")
    for value, _ in block.levels:
        axes.axhline(value, color="0.25", linewidth=1.1, linestyle=(0, (6, 4)))
    for each in scales.beyond(block, curves):
        place = {"xy": (each.x, float(each.above)), "xycoords": ("data", "axes fraction")}
        look = {
            "color": COLOURS[scales.look(block.lines[each.curve].place(each.curve))[0]],
            "fontsize": 9,
            "ha": "center",
            "annotation_clip": False,
        }
        aside = {
            "xytext": (-8 * each.beside, 0),
            "textcoords": "offset points",
            "va": "top" if each.above else "bottom",
        }
        axes.annotate("▲" if each.above else "▼", **place, **aside, **look)


def _above(block: Lines) -> float:
    """What the words above a panel take [points]."""
    return 4 + ABOVE * len(block.marks)


def _scaled(axes: Any, block: Lines, n_x: int, n_y: int) -> None:
    """Limits and ticks, as on the page. n_x, n_y: ticks at most."""
    x_limits, y_limits = scales.ends(block)
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


def _curve(axes: Any, line: Line, look: dict[str, Any]) -> None:
    """Points that are not finite are left out; of many points, not every one has a marker."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    finite = np.isfinite(y)
    every = math.ceil(len(x) / scales.MARKERS_A_LINE) or 1
    style = {"linewidth": 1.8, "markersize": 6, "markevery": every, **look}
    axes.plot(x[finite], y[finite], label=_label(line), **style)
    if line.least is not None and line.most is not None:
        least, most = (np.asarray(edge, float) for edge in (line.least, line.most))
        there = finite & np.isfinite(least) & np.isfinite(most)
        axes.vlines(x[there], least[there], most[there], color=look["color"], linewidth=1.0)
    if line.low is None or line.high is None:
        return
    low, high = (np.asarray(edge, float) for edge in (line.low, line.high))  # None becomes NaN
    known = finite & np.isfinite(low) & np.isfinite(high)
    if known.sum() == 1:
        axes.vlines(x[known], low[known], high[known], color=look["color"], linewidth=1.2)
    axes.fill_between(x[known], low[known], high[known], color=look["color"], alpha=0.18, linewidth=0)


def _heat_maps(block: HeatMaps) -> Figure:
    columns = min(PANELS_A_ROW, len(block.panels)) or 1
    rows = math.ceil(len(block.panels) / columns) or 1
    wide = max((len(panel.x_names) for panel in block.panels), default=1)
    high = max((len(panel.y_names) for panel in block.panels), default=1)
    size = (columns * (SQUARE * wide + 0.9) + 0.4, rows * (SQUARE * 0.75 * high + 1.0) + 0.5)
    sheet, axes = _sheet(block.title, size, rows, columns)
    for one, panel in zip(axes, block.panels, strict=False):
        _heat_map(one, block, panel)
    for one in axes[len(block.panels) :]:
        one.set_visible(False)
    if any(panel.mark_after_x is not None for panel in block.panels):
        sheet.supxlabel("vertical line: end of the training window", fontsize=9, color=MARK)
    return sheet


def _heat_map(axes: Any, block: HeatMaps, panel: HeatMap) -> None:
    colours = LinearSegmentedColormap.from_list("ramp", [hex_of(colour) for colour in RAMP])
    numbers = [[math.nan if value is None else value for value in row] for row in panel.values]
    axes.imshow(numbers, cmap=colours, vmin=block.low, vmax=block.high, aspect="auto")
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            colour = ground(value, block.low, block.high)
            ink = hex_of(ink_on(colour)) if colour else "0.4"
            text = "–" if value is None else block.form.format(value)
            axes.text(j, i, text, ha="center", va="center", fontsize=9, color=ink)
    axes.set_title(panel.title, fontsize=11)
    axes.set_xticks(range(len(panel.x_names)), panel.x_names, fontsize=9)
    axes.set_yticks(range(len(panel.y_names)), panel.y_names, fontsize=9)
    axes.set_xlabel(block.x_label, fontsize=10)
    axes.set_ylabel(block.y_label, fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if panel.mark_after_x is not None:
        axes.axvline(panel.mark_after_x - 0.5, color=MARK, linewidth=3)
