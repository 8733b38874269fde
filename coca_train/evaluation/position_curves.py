"""Loss by position in the window: curves of several models, and what they are less their median."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coca_train.evaluation.grid_blocks import BEYOND, curves
from coca_train.evaluation.measures.windows import middles
from coca_train.evaluation.results import GridRow
from coca_train.report.blocks import Block, Line

FEW = 7  # curves of one picture that need no choice: as many as there are colours
FAR_OFF = 1.0  # [nats per token] above the median: where the picture of differences ends at the latest


def loss_by_position(
    rows: Sequence[GridRow], file: Callable[[str], str], marks: Sequence[tuple[float, str]]
) -> list[Block | str | None]:
    """Loss by position in the longest window of each row; of several models, also minus their median. file: the name of
    a block. marks: of the axis."""
    axis: dict[str, Any] = {
        "x_label": "position: tokens before the prediction",
        "x_log": True,
        "marks": marks,
    }
    levels = _losses(rows if len(rows) <= FEW else trained(rows))
    looks = {line.label: index for index, line in enumerate(levels)}  # of a model, the same in both pictures
    compared = [replace(line, look=looks[line.label]) for line in _less_median(_losses(trained(rows)))]
    far = any(y > FAR_OFF for line in compared for y in line.y)
    return [
        curves(
            levels,
            name=file("loss-by-position"),
            title="Loss by position in the longest window",
            alt="Mean loss against the position of the prediction in its window, one curve a model and variant.",
            y_label="loss [nats per token]",
            note="First window of each document only: at one position all models are measured on the same tokens.",
            **axis,
        ),
        curves(
            compared if len(compared) > 1 else (),
            name=file("loss-by-position-compared"),
            title="Loss by position, minus the models' median",
            alt="Mean loss minus the median of all models at the same position, one curve a model; below 0 is better.",
            y_label="loss minus the median [nats per token]",
            y_limits=(None, FAR_OFF if far else None),
            note="The models as they were trained. What all of them share, how hard the documents are, is taken away. "
            "It is most of the intervals above, which say nothing of these differences."
            + (f" {BEYOND}" if far else ""),
            **axis,
        ),
    ]


def _losses(rows: Sequence[GridRow]) -> list[Line]:
    """With their intervals; of rows that have several seeds, the lowest and the highest of them instead."""
    lines = []
    for row in rows:
        if row.last:
            unknown = [None] * len(row.last["ends"])
            seeds = [each["loss_by_position"] for each in row.last.get("seeds", {}).values()]
            seeds = seeds if len(seeds) > 1 else []
            ends = [[end(losses) for losses in zip(*seeds, strict=True)] for end in (min, max)] if seeds else []
            interval = [unknown, unknown] if seeds else [row.last["loss_low"], row.last["loss_high"]]
            columns = (middles(row.last["ends"]), row.last["loss_by_position"], *interval, *ends)
            lines.append(Line.through(row.label, zip(*columns, strict=True)))
    return lines


def _less_median(lines: Sequence[Line]) -> list[Line]:
    """At each position the median is over the curves that have it, which are over the very same tokens."""
    by_position: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            by_position.setdefault(x, []).append(y)
    median = {x: statistics.median(losses) for x, losses in by_position.items()}
    less = [tuple(y - median[x] for x, y in zip(line.x, line.y, strict=True)) for line in lines]
    alone = {"low": None, "high": None, "least": None, "most": None}
    return [replace(line, y=y, **alone) for line, y in zip(lines, less, strict=True)]


def trained(rows: Sequence[GridRow]) -> list[GridRow]:
    """Every model under its first variant: what it was trained with, unless the grid leaves that out."""
    return [row for row in rows if row.variant == row.subject.variants[0]]
