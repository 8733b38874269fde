"""The figures of docs/: one small SVG for each scheme and visibility. The same numbers give the same file.

Text stays text, on a white card, so that it can be read on a dark page as well.
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from coca_train.planning.catalog.entries import entries
from coca_train.planning.catalog.pictures import N_DRAWN, Curves, Mask, picture
from coca_train.report.render.scales import COLOURS
from coca_train.runtime.durable import write_text

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "coca_train",
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
CURVES_SIZE, MASK_SIZE = (4.6, 2.7), (3.6, 2.9)  # [inches]
LEVELS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 18)  # of distance, in the masks


def names() -> list[str]:
    """What has a figure."""
    return [*entries("position"), *entries("visibility")]


def write_figures(folder: Path, chosen: Iterable[str] | None = None) -> None:
    """Write <name>.svg for every scheme and visibility, or for those chosen."""
    offered = entries("position") | entries("visibility")
    for name in names() if chosen is None else chosen:
        write_text(folder / f"{name}.svg", svg(picture(offered[name])))


def svg(drawn: Curves | Mask) -> str:
    """A figure as SVG; coordinates to a hundredth of a point, so that other processors write the same."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        sheet(drawn).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", buffer.getvalue())


def sheet(drawn: Curves | Mask) -> Figure:
    """A figure, not yet in any format."""
    page = Figure(figsize=CURVES_SIZE if isinstance(drawn, Curves) else MASK_SIZE, facecolor="white")
    axes = page.add_subplot()
    if isinstance(drawn, Curves):
        page.subplots_adjust(left=0.15, right=0.97, bottom=0.18, top=0.90)
        _lines(axes, drawn)
    else:
        page.subplots_adjust(left=0.14, right=0.97, bottom=0.17, top=0.97)
        _pairs(axes, drawn)
    return page


def _lines(axes: Any, drawn: Curves) -> None:
    for index, curve in enumerate(drawn.lines):
        look = {"linestyle": (0, (4, 3)), "linewidth": 1.8} if curve.dashed else {"linewidth": 1.5}
        axes.plot(curve.y, label=curve.label, color=COLOURS[index], **look)
    axes.set_xlabel(drawn.x_label)
    axes.set_ylabel(drawn.y_label)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.margins(x=0)
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(frameon=False, fontsize=8, ncols=len(drawn.lines), handlelength=1.8, columnspacing=1.4, **above)


def _pairs(axes: Any, drawn: Mask) -> None:
    """A square for every pair that is seen, shaded by its distance."""
    squares, values = [], []
    for query, row in enumerate(drawn.distance):
        for key, distance in enumerate(row):
            if distance is not None:
                squares.append([(key, query), (key + 1, query), (key + 1, query + 1), (key, query + 1)])
                values.append(distance)
    shades = PolyCollection(squares, array=values, cmap="viridis", norm=BoundaryNorm(LEVELS, 256), linewidths=0)
    axes.add_collection(shades)
    axes.set(xlim=(0, N_DRAWN), ylim=(N_DRAWN, 0), aspect="equal", xlabel="key", ylabel="query")
    ticks = range(0, N_DRAWN, 5)
    axes.set_xticks([tick + 0.5 for tick in ticks], ticks)
    axes.set_yticks([tick + 0.5 for tick in ticks], ticks)
    axes.figure.colorbar(shades, ax=axes, label="distance", spacing="uniform", ticks=LEVELS)
