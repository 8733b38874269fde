"""Matplotlib figures: fixed colours that colour-blind readers can tell apart, no display needed."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from coca_train.report.files import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line: perplexity against window [tokens], with its interval if any; non-finite points are left out."""

    label: str
    windows: Sequence[int]
    perplexity: Sequence[float]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    colour: int = 0
    dash: int = 0


@contextmanager
def figure(path: Path, title: str, subtitle: str) -> Iterator[Any]:
    """Axes to draw on; the PNG is written, atomically, when the block ends."""
    page = Figure(figsize=(9, 6), dpi=140)
    FigureCanvasAgg(page)
    axes = page.subplots()
    page.set_layout_engine("constrained", h_pad=0.07, w_pad=0.1)
    page.suptitle(title, fontsize=15, fontweight="bold")
    axes.set_title(subtitle, fontsize=10, color="0.35")
    axes.tick_params(labelsize=11)
    axes.grid(True, which="major", color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    yield axes
    buffer = io.BytesIO()
    page.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())


def perplexity_figure(path: Path, curves: Sequence[Curve], training_window: int, title: str, subtitle: str) -> None:
    """Perplexity against context window, both logarithmic, the training window marked."""
    with figure(path, title, subtitle) as axes:
        mark = f"training window ({training_window:,})"
        axes.axvline(training_window, color="0.45", linewidth=1.2, linestyle=(0, (2, 2)), label=mark)
        for curve in curves:
            _draw(axes, curve)
        windows = sorted({w for curve in curves for w in curve.windows} | {training_window})
        axes.set_xscale("log", base=2)
        axes.set_xticks(windows, [f"{w:,}" if w < 10_000 else f"{w / 1024:g}k" for w in windows])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("context window [tokens]", fontsize=12)
        _log_y(axes, [y for c in curves for y in c.perplexity if np.isfinite(y)])
        axes.set_ylabel("perplexity (lower is better)", fontsize=12)
        axes.legend(fontsize=10, framealpha=0.9, edgecolor="none", ncols=2 if len(curves) > 5 else 1)


def _draw(axes: Any, curve: Curve) -> None:
    x, y = np.asarray(curve.windows, float), np.asarray(curve.perplexity, float)
    shown = np.isfinite(y)
    colour, marker = COLOURS[curve.colour % len(COLOURS)], MARKERS[curve.colour % len(MARKERS)]
    style = DASHES[curve.dash % len(DASHES)]
    fill = colour if curve.dash == 0 else "white"
    look = {"color": colour, "marker": marker, "markerfacecolor": fill, "linewidth": 2, "markersize": 7}
    axes.plot(x[shown], y[shown], style, label=curve.label, **look)
    if curve.low is None or curve.high is None:
        return
    low, high = (np.asarray([np.nan if v is None else v for v in bound], float) for bound in (curve.low, curve.high))
    banded = shown & np.isfinite(low) & np.isfinite(high)
    if banded.any():
        axes.fill_between(x[banded], low[banded], high[banded], color=colour, alpha=0.13, linewidth=0)


def _log_y(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic y axis with plain numbers, more of them the less it spans."""
    axes.set_yscale("log")
    if not values:
        return
    decades = np.log10(max(values) / min(values)) if min(values) > 0 else 1.0
    fine = np.arange(1, 10, 1 if decades > 0.2 else 0.2)
    steps = (1,) if decades > 4 else (1, 2, 5) if decades > 0.7 else tuple(fine)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=40))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def loss_figure(path: Path, records: Sequence[Mapping[str, Any]], title: str, subtitle: str) -> None:
    """Training loss (raw and smoothed) and validation loss by source, against the step."""
    train = [(r["step"], r["loss"]) for r in records if r.get("loss") is not None]
    sources = sorted({key for r in records for key in r if key.startswith("valid/")})
    with figure(path, title, subtitle) as axes:
        if train:
            steps, losses = np.asarray(train, float).T
            axes.plot(steps, losses, color="0.75", linewidth=1, label="training, as logged")
            axes.plot(steps, smooth(losses), color="black", linewidth=2, label="training, smoothed")
        for index, key in enumerate(sources):
            points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
            if points:
                x, y = np.asarray(points, float).T
                label = f"held out: {key.removeprefix('valid/')}"
                axes.plot(x, y, color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)], label=label)
        axes.set_xlabel("optimizer step", fontsize=12)
        axes.set_ylabel("loss [nats per token]", fontsize=12)
        if axes.has_data():
            axes.legend(fontsize=11, frameon=False)


def smooth(values: np.ndarray, share: float = 0.05) -> np.ndarray:
    """Mean over a centred window of `share` of the points; the window shrinks at both ends."""
    half = int(len(values) * share / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reach = np.minimum(half, np.minimum(index, len(values) - 1 - index))
    return (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)
