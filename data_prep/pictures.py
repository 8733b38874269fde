"""Axes for the pictures in report/: one look for all of them, written as PNG by matplotlib."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coca_train.runtime.durable import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
DPI = 140


@contextmanager
def drawn_page(
    path: Path, title: str, subtitle: str, size: tuple[float, float], columns: int = 1
) -> Iterator[list[Axes]]:
    """Give the axes of a page, and write it as a PNG when the block ends. size: width and height [inches]."""
    sheet = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(sheet)
    sheet.suptitle(f"{title}\n", fontsize=15, fontweight="bold")
    sheet.set_layout_engine("constrained", h_pad=0.07, w_pad=0.1)
    sheet.text(0.5, 1 - 0.42 / size[1], subtitle, fontsize=10, color="0.35", ha="center", va="center")
    axes: list[Axes] = list(sheet.subplots(1, columns, squeeze=False).flat)
    for one in axes:
        one.tick_params(labelsize=11)
        one.grid(True, which="major", color="0.88", linewidth=0.8)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    yield axes
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=DPI)
    write_bytes(path, buffer.getvalue())
