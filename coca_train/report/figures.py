"""Matplotlib figures: fixed colours that colour-blind readers can tell apart, no display needed."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coca_train.runtime.durable import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
MARKERS = "osD^vPX"


@contextmanager
def page(
    path: Path, title: str, subtitle: str, size: tuple[float, float] = (9, 6), rows: int = 1, columns: int = 1
) -> Iterator[list[Any]]:
    """Axes to draw on, row by row; the PNG is written, atomically, when the block ends."""
    sheet = Figure(figsize=size, dpi=140)
    FigureCanvasAgg(sheet)
    axes = sheet.subplots(rows, columns, squeeze=False).ravel().tolist()
    sheet.set_layout_engine("constrained", h_pad=0.07, w_pad=0.1)
    sheet.suptitle(f"{title}\n", fontsize=15, fontweight="bold")
    sheet.text(0.5, 1 - 0.42 / size[1], subtitle, fontsize=10, color="0.35", ha="center", va="center")
    for one in axes:
        one.tick_params(labelsize=11)
        one.grid(True, which="major", color="0.88", linewidth=0.8)
        one.set_axisbelow(True)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    yield axes
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())
