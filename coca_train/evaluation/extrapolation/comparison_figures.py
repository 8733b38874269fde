"""The pictures of a comparison: perplexity by window, loss by position, cost of a step. Up to 28 schemes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.evaluation.extrapolation.measure import Extrapolation
from coca_train.evaluation.extrapolation.tables import label
from coca_train.evaluation.measures.positions import PositionLoss
from coca_train.report.figures import (
    FEW,
    Curve,
    draw,
    draw_perplexity,
    look,
    mark_window,
    outside_legend,
    page,
    perplexity_figure,
    ranking,
    window_axis,
    y_limits,
)

COST = "time: median over the logged steps; memory: the most that was held (CPU: by the whole process, Python included)"
FAR_OFF = 1.0  # [nats per token] above the median: where the lower panel of the position picture ends at the latest
FAINT = 0.25  # opacity of what stands in a panel for orientation only


def perplexity_pictures(results: Mapping[str, Extrapolation], setting: str, directory: Path) -> dict[str, Path]:
    """comparison.png: every variant, or, of more than a few curves, every scheme as it was trained and the variants
    in panels of their own, variants.png."""
    first = next(iter(results.values()))
    title, paths = "Perplexity by context window", {"perplexity": directory / "comparison.png"}
    curves = [
        curve(result, result.pooled, name, label(scheme, result, name), colour, dash)
        for colour, (scheme, result) in enumerate(results.items())
        for dash, name in enumerate(result.variants)
        if result.scored(name)
    ]
    if len(curves) <= FEW:
        perplexity_figure(paths["perplexity"], curves, first.training_window, title, setting)
        return paths
    trained = [
        curve(result, result.pooled, result.variants[0], scheme, index)
        for index, (scheme, result) in enumerate(results.items())
        if result.scored(result.variants[0])
    ]
    perplexity_figure(paths["perplexity"], trained, first.training_window, title, setting)
    others = dict.fromkeys(name for result in results.values() for name in result.variants[1:])
    if others:
        paths["variants"] = directory / "variants.png"
        _variant_panels(paths["variants"], results, list(others), setting)
    return paths


def curve(
    result: Extrapolation,
    source: str,
    variant: str,
    name: str,
    colour: int,
    dash: int | None = None,
    band: bool = False,
) -> Curve:
    """Perplexity of one text and variant at the windows that were scored."""
    found = [(w, cell) for w in result.windows if (cell := result.find(source, variant, w)) is not None]
    return Curve(
        label=name,
        look=look(colour, dash),
        x=[w for w, _ in found],
        y=[cell.perplexity for _, cell in found],
        low=[cell.ci_low for _, cell in found] if band else None,
        high=[cell.ci_high for _, cell in found] if band else None,
    )


def _variant_panels(path: Path, results: Mapping[str, Extrapolation], names: Sequence[str], setting: str) -> None:
    """A panel for each variant: the schemes that have it, and, faint, the same as they were trained."""
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    training_window = next(iter(results.values())).training_window
    drawn: dict[str, list[Curve]] = {name: [] for name in names}
    as_trained: dict[str, list[Curve]] = {name: [] for name in names}
    for index, (scheme, result) in enumerate(results.items()):
        for name in result.variants[1:]:
            drawn[name].append(curve(result, result.pooled, name, scheme, index))
            as_trained[name].append(curve(result, result.pooled, result.variants[0], scheme, index))  # may be empty
    limits = y_limits([one for curves in drawn.values() for one in curves])
    size = (7 * columns + 1, 5.2 * rows + 1)
    with page(path, "Other frequencies and visibilities on the same weights", setting, size, rows, columns) as panels:
        for axes, name in zip(panels, names, strict=False):
            draw_perplexity(axes, drawn[name], training_window, limits)
            for one in as_trained[name]:
                axes.plot(one.x, one.y, color=one.look.colour, alpha=FAINT, linewidth=1, zorder=1)
            axes.set_title(f"{name} (faint: as trained)", fontsize=12)
            outside_legend(axes, ranking(drawn[name]), "perplexity in its longest window")
        for axes in panels[len(names) :]:
            axes.set_visible(False)


def position_picture(results: Mapping[str, Extrapolation], directory: Path) -> dict[str, Path]:
    """position_loss.png: loss by position in the longest window of each scheme, and less the median of all schemes.

    No picture where no scheme was scored as it was trained.
    """
    path = directory / "position_loss.png"
    looks = {scheme: look(index) for index, scheme in enumerate(results)}
    found = {scheme: part for scheme, result in results.items() if (part := longest_positions(result)) is not None}
    if not found:
        return {}
    training_window = next(iter(results.values())).training_window
    farthest = max(part.window for part in found.values())
    medians = _medians(list(found.values()))
    losses, differences = [], []
    for scheme, part in found.items():
        offset = [loss - medians[place] for place, loss in zip(part.bins(), part.loss, strict=True)]
        losses.append(Curve(label=scheme, look=looks[scheme], x=part.middles(), y=part.loss))
        differences.append(Curve(label=scheme, look=looks[scheme], x=part.middles(), y=offset))
    subtitle = (
        "the first window of every document: at one position, the same tokens for all schemes; "
        "bins of a quarter octave, each scheme in its longest window"
    )
    size = (12, max(9.0, 4 + 0.24 * len(found)))
    with page(path, "Loss by position in the window", subtitle, size, rows=2) as (above, below):
        for axes, curves in ((above, losses), (below, differences)):
            mark_window(axes, training_window)
            for one in curves:
                draw(axes, one, size=4.5, every=4)
            window_axis(axes, [2**n for n in range(farthest.bit_length())])
        below.axhline(0, color="0.45", linewidth=1)
        below.set_xlabel("position in the window: tokens of context before the predicted one", fontsize=12)
        above.set_ylabel("loss [nats per token]", fontsize=12)
        below.set_ylabel("loss minus the schemes' median", fontsize=12)
        _limit(above, losses, max(y for c in losses for x, y in zip(c.x, c.y, strict=True) if x <= training_window))
        _limit(below, differences, FAR_OFF)
        early = {scheme: f" (to {part.window:,})" for scheme, part in found.items() if part.window < farthest}
        order = sorted(differences, key=lambda one: (one.label in early, -one.y[-1]))
        texts = [(one.label, f"{one.label}  {one.y[-1]:+.3f}{early.get(one.label, '')}") for one in order]
        outside_legend(below, texts, "difference at\nthe last positions", whole_page=True)
    return {"positions": path}


def _limit(axes: Any, curves: Sequence[Curve], highest: float) -> None:
    """Where the y axis ends; a curve that goes on beyond it has its value in the legend."""
    values = [y for curve in curves for y in curve.y if np.isfinite(y)]
    low, high = min(values), min(max(values), highest)
    edge = 0.03 * (high - low) or 0.01
    axes.set_ylim(low - edge, high + edge)


def longest_positions(result: Extrapolation) -> PositionLoss | None:
    """Loss by position of the trained variant in the longest window it was scored in, if any."""
    parts = [part for part in result.positions if part.variant == result.variants[0]]
    return max(parts, key=lambda part: part.window, default=None)


def _medians(parts: Sequence[PositionLoss]) -> dict[tuple[int, int], float]:
    """Median of each bin over the schemes that have it, which is over the very same tokens."""
    by_bin: dict[tuple[int, int], list[float]] = {}
    for part in parts:
        for place, loss in zip(part.bins(), part.loss, strict=True):
            by_bin.setdefault(place, []).append(loss)
    return {place: float(np.median(losses)) for place, losses in by_bin.items()}


def cost_picture(facts: Mapping[str, Mapping[str, Any]], directory: Path) -> dict[str, Path]:
    """cost.png: bars of time of a training step and peak memory by scheme, both also relative to the first scheme."""
    path, subtitle = directory / "cost.png", COST
    schemes = list(facts)
    rows = np.arange(len(schemes))[::-1]
    with page(path, "Cost of a training step", subtitle, (11, 2.2 + 0.32 * len(schemes)), columns=2) as panels:
        for axes, key, what in (
            (panels[0], "ms_per_step", "time [ms]"),
            (panels[1], "peak_memory_mib", "peak memory [MiB]"),
        ):
            values = [facts[scheme].get(key) for scheme in schemes]
            known = [value or 0.0 for value in values]
            axes.barh(rows, known, height=0.7, color=["0.35", *["#56B4E9"] * (len(schemes) - 1)])
            for row, value in zip(rows, values, strict=True):
                text = "not recorded" if value is None else f"{value:,.0f}"
                if value and values[0]:
                    text += f"  ({value / values[0]:.2f}x)"
                axes.annotate(
                    text, (value or 0.0, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10
                )
            axes.set_xlim(0, max(known) * 1.3 or 1.0)
            axes.set_ylim(-0.7, len(schemes) - 0.3)
            axes.set_xlabel(what, fontsize=12)
            axes.grid(False, axis="y")
        panels[0].set_yticks(rows, schemes)
        panels[1].set_yticks(rows, [])
    return {"cost": path}
