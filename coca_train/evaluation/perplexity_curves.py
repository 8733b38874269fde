"""Perplexity by context window: curves of several models and variants."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coca_train.evaluation.grid_blocks import BEYOND, by_length, curves, file_names, training_windows
from coca_train.evaluation.position_curves import FEW, trained
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report.blocks import Line, Lines

MARGIN = 1.05  # factor below the lowest point of such a picture
HIGHEST = 2.0  # times the median of the last points: where the y axis of many curves ends at the latest


def perplexity_by_window(evaluation: Evaluation, file: Callable[[str], str]) -> list[Lines | None]:
    """All rows in one picture where they are few, else one a variant. evaluation: of one text. file: the name of a
    block about it."""
    rows = evaluation.rows()
    pictures = {"": rows}
    if len(rows) > FEW:
        pictures = {"": trained(rows)}
        for row in rows:
            if row.variant != row.subject.variants[0]:
                pictures.setdefault(row.variant, []).append(row)
    files = {"": "", **{name: f"-{part}" for name, part in file_names([name for name in pictures if name]).items()}}
    name = file("perplexity-curves")
    return [
        _picture(evaluation, shown, f"{name}{files[variant]}", f": {variant}" if variant else "")
        for variant, shown in pictures.items()
    ]


def _picture(evaluation: Evaluation, rows: Sequence[GridRow], name: str, words: str) -> Lines | None:
    lines = [by_length(row, _point) for row in rows]
    limits = _limits(lines)
    return curves(
        lines,
        name=name,
        title=f"Perplexity by context window{words}",
        alt="Perplexity against context window, one curve a model and variant; the table below has the figures.",
        x_label="context window [tokens]",
        y_label="perplexity (lower is better)",
        x_log=True,
        y_log=True,
        y_limits=limits,
        marks=training_windows(evaluation),
        note=BEYOND if limits[1] else "",
    )


def _point(result: Mapping[str, Any]) -> list[float | None]:
    """Of a curve of perplexities: with its interval, and its lowest and highest seed."""
    seeds = [each["perplexity"] for each in result.get("seeds", {}).values()]
    ends = [min(seeds), max(seeds)] if len(seeds) > 1 else []
    return [result["perplexity"], result["ci_low"], result["ci_high"], *ends]


def _limits(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """Of the y axis, so that most of many curves can be told apart; None: where the curves end."""
    ys, last = [y for line in lines for y in line.y], [line.y[-1] for line in lines if line.y]
    if len(last) <= FEW:
        return None, None
    highest = HIGHEST * statistics.median(last)  # may be infinite: then nothing lies above it
    return (min(ys) / MARGIN, highest) if highest < max(ys) else (None, None)
