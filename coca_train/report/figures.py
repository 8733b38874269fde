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

from coca_train.runtime.durable import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, 2008
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":", "-.")
FEW = len(COLOURS)  # curves that a legend inside the axes can hold
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest


@dataclass(frozen=True)
class Look:
    """Colour, marker and line style of a curve. The first 28 of `look` differ."""

    colour: str
    marker: str
    dash: str

    def options(self, size: float = 6.0) -> dict[str, Any]:
        """For axes.plot; dashed curves have open markers."""
        fill = self.colour if self.dash == "-" else "white"
        look = {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "markerfacecolor": fill}
        return look | {"linewidth": 1.8, "markersize": size}


def look(index: int, dash: int | None = None) -> Look:
    """The look of the index-th curve: colours first, then other markers and dashes. dash: one for all, if given."""
    turn, colour = divmod(index, len(COLOURS))
    marker = MARKERS[(colour + turn) % len(MARKERS)]
    return Look(COLOURS[colour], marker, DASHES[(turn if dash is None else dash) % len(DASHES)])


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, x in tokens, with its interval if any; points that are not finite are left out."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


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


def perplexity_figure(path: Path, curves: Sequence[Curve], training_window: int, title: str, subtitle: str) -> None:
    """Perplexity against context window, both logarithmic, the training window marked.

    Of many curves, those far above the others leave the picture; the legend has their last value.
    """
    many = len(curves) > FEW
    with page(path, title, subtitle, (11.5, max(7.0, 2 + 0.27 * len(curves))) if many else (9, 6)) as (axes,):
        draw_perplexity(axes, curves, training_window, y_limits(curves) if many else None)
        if many:
            outside_legend(axes, ranking(curves), "perplexity in its longest window")
        else:
            axes.legend(fontsize=10, framealpha=0.9, edgecolor="none", ncols=2 if len(curves) > 5 else 1)


def draw_perplexity(
    axes: Any, curves: Sequence[Curve], training_window: int, limits: tuple[float, float] | None = None
) -> None:
    """The curves, both axes logarithmic and labelled, the training window marked. limits: of the y axis."""
    mark_window(axes, training_window)
    for curve in curves:
        draw(axes, curve)
    window_axis(axes, sorted({int(w) for curve in curves for w in curve.x} | {training_window}))
    axes.set_xlabel("context window [tokens]", fontsize=12)
    values = [y for c in curves for y in c.y if np.isfinite(y)]
    _log_y(axes, *(limits or (min(values, default=1.0), max(values, default=1.0))))
    if limits:
        axes.set_ylim(limits)
    axes.set_ylabel("perplexity (lower is better)", fontsize=12)


def y_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Of a logarithmic y axis on which most of many curves can be told apart."""
    values = [y for curve in curves for y in curve.y if np.isfinite(y)] or [1.0]
    last = [curve.y[-1] for curve in curves]  # the median may be infinite, the minimum below is not
    return min(values) / 1.05, min(max(values), HIGHEST * float(np.median(last))) * 1.05


def ranking(curves: Sequence[Curve]) -> list[tuple[str, str]]:
    """(label, legend text) in the order in which curves end, highest first; what ends early comes last and says so."""
    farthest = max(x for curve in curves for x in curve.x)
    entries = []
    for curve in sorted(curves, key=lambda c: (c.x[-1] < farthest, -c.y[-1])):
        value = f"{curve.y[-1]:,.4g}" if abs(curve.y[-1]) < 10_000 else f"{curve.y[-1]:.1e}"
        ends = "" if curve.x[-1] == farthest else f" (to {curve.x[-1]:,.0f})"
        entries.append((curve.label, f"{curve.label}  {value}{ends}"))
    return entries


def outside_legend(axes: Any, entries: Sequence[tuple[str, str]], title: str, whole_page: bool = False) -> None:
    """A legend to the right of the axes, or of the whole page: (label of a curve on these axes, text)."""
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    (axes.figure if whole_page else axes).legend(
        [by_label[label] for label, _ in entries],
        [text for _, text in entries],
        title=title,
        fontsize=9.5,
        frameon=False,
        handlelength=3.6,
        alignment="left",
        **({"loc": "outside right center"} if whole_page else place),
    )


def mark_window(axes: Any, training_window: int) -> None:
    """A dotted vertical line at the training window, with its name in the legend."""
    mark = f"training window ({training_window:,})"
    axes.axvline(training_window, color="0.45", linewidth=1.2, linestyle=(0, (2, 2)), label=mark)


def window_axis(axes: Any, ticks: Sequence[int]) -> None:
    """A logarithmic x axis in tokens, with these ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{w:,}" if w < 10_000 else f"{w / 1024:g}k" for w in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def draw(axes: Any, curve: Curve, size: float = 6.0, every: int = 1) -> None:
    """One curve and its band. every: a marker at every so many points."""
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    shown = np.isfinite(y)
    axes.plot(x[shown], y[shown], label=curve.label, markevery=every, **curve.look.options(size))
    if curve.low is None or curve.high is None:
        return
    low, high = (np.asarray([np.nan if v is None else v for v in bound], float) for bound in (curve.low, curve.high))
    banded = shown & np.isfinite(low) & np.isfinite(high)
    if banded.any():
        axes.fill_between(x[banded], low[banded], high[banded], color=curve.look.colour, alpha=0.13, linewidth=0)


def _log_y(axes: Any, low: float, high: float) -> None:
    """A logarithmic y axis with plain numbers, more of them the less it spans."""
    axes.set_yscale("log")
    decades = np.log10(high / low) if low > 0 else 1.0
    fine = np.arange(1, 10, 1 if decades > 0.2 else 0.2)
    steps = (1,) if decades > 4 else (1, 2, 5) if decades > 0.9 else tuple(fine)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=40))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def loss_figure(path: Path, records: Sequence[Mapping[str, Any]], title: str, subtitle: str) -> None:
    """Training loss (raw and smoothed) and validation loss by source, against the step."""
    train = [(r["step"], r["loss"]) for r in records if r.get("loss") is not None]
    sources = sorted({key for r in records for key in r if key.startswith("valid/")})
    with page(path, title, subtitle) as (axes,):
        if train:
            steps, losses = np.asarray(train, float).T
            axes.plot(steps, losses, color="0.75", linewidth=1, label="training, as logged")
            axes.plot(steps, smooth(losses), color="black", linewidth=2, label="training, smoothed")
        for index, key in enumerate(sources):
            points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
            if points:
                x, y = np.asarray(points, float).T
                axes.plot(x, y, label=f"held out: {key.removeprefix('valid/')}", **look(index).options())
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
