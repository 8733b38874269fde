"""What there is to see of the rotational anomaly: angles, heads, borders, reach."""

from collections.abc import Iterable
from typing import Any

from coca_train.evaluation.measures.angles import BINS, BORDERS
from coca_train.evaluation.pages.grid_blocks import (
    by_point,
    curves,
    document,
    figure,
    figures,
    heading,
    table,
    training_windows,
)
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report.blocks import Document, HeatMap, HeatMaps, Line, Lines, Row, Table

PILED_UP = 10.0  # a density beyond which the others would be flat lines
SHARES = {"anomalous": "anomalous", "weighted": "weighted", "placed": "as placed", "empty": "without"}
PANELS = {"by_head": "counted", "weighted_by_head": "weighted by |q||k|"}

ABOUT = (
    "Pair j of a head begins at the angle Θ from its key to its query, counter-clockwise, before any rotation. With "
    "Θ > π (anomalous; scenario (d) of the CoCA paper) the score first rises while the distance grows, for as long as "
    "m - n < (2π - Θ)/θ_j: the abnormal region. CoCA's keys are collinear with their queries, so Θ = 0."
)
ABOUT_SHARES = (
    "Shares of sampled pairs of tokens n < m, over all layers, heads and pairs of features that have an angle. "
    "weighted: by |q||k|. as placed: of the angle in the score less (m - n)θ_j, which is not Θ for slack CoCA only "
    "(Eq. 11 without Eq. 12 rotates t, not the key). without: no angle, because a vector is 0 (t = 0)."
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; models without angles appear with the reason."""
    rows, points = evaluation.rows(), evaluation.points
    # Angles are those before rotation: frequencies do not move them, so one variant of each model says it all.
    trained = [row for row in rows if row.variant == row.subject.variants[0] and row.results]
    first = {row.subject.name: next(iter(row.results.items())) for row in trained}
    shares = {
        words: lambda row, key=key: figure(row.cells.get(points[0]), lambda result: result[key], "{:.1%}")
        for key, words in SHARES.items()
    }
    return document(
        evaluation,
        "Rotational anomaly",
        summary=[
            f"{row.subject.name} ({row.subject.scheme}): {_percent(result['anomalous'])} of its pairs begin anomalous; "
            f"{_percent(result['abnormal'])} lie in the abnormal region at {int(point):,} tokens."
            for row in trained
            for point, result in [first[row.subject.name]]
        ],
        sections={
            "Initial angles": [
                ABOUT,
                table(
                    rows,
                    shares,
                    name="anomaly-shares",
                    title=f"Share in the anomalous sector, at {int(points[0]):,} tokens",
                    note=ABOUT_SHARES,
                ),
                _densities((name, result) for name, (_, result) in first.items()),
            ],
            "By layer and head": [_heads(i, name, first[name][1]) for i, name in enumerate(first, 1)],
            "Borders by length": [
                table(
                    rows,
                    by_point(points, lambda result: result["abnormal"], "{:.1%}"),
                    name="anomaly-abnormal",
                    title="Share of pairs in the abnormal region",
                    note="Of all pairs n < m of a window of this length, those with m - n < (2π - Θ)/θ_j and Θ > π.",
                ),
                _borders(evaluation, rows),
            ],
            "How far the anomaly reaches": [
                curves(
                    (Line.through(row.label, enumerate(row.last.get("reach_by_pair", ()))) for row in rows),
                    name="anomaly-reach",
                    title="Tokens under the anomaly, mean of (2π - Θ)/θ_j over anomalous pairs",
                    alt="Mean number of nearest tokens under the anomaly, by pair of features; it grows as the pairs "
                    "turn slower.",
                    x_label="pair j (0 turns fastest)",
                    y_label="[tokens]",
                    y_log=True,
                    note="Training windows: "
                    + ", ".join(f"{window:,.0f} ({words})" for window, words in training_windows(evaluation))
                    + ".",
                ),
                curves(
                    (Line.through(row.label, enumerate(row.last.get("slowed_by_pair", ()))) for row in rows),
                    name="anomaly-slowed",
                    title="How much longer other frequencies make it",
                    alt="Factor by which each pair's abnormal region is longer than with unscaled frequencies.",
                    x_label="pair j (0 turns fastest)",
                    y_label="factor",
                    y_log=True,
                    note="At the longest length. The paper (2.3) gives s for position interpolation and λ^(2j/d) for "
                    "NTK.",
                ),
            ],
        },
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _densities(results: Iterable[tuple[str, Any]]) -> Lines | None:
    lines = []
    for name, result in results:
        counts = [sum(column) for column in zip(*result["histogram_by_pair"], strict=True)]
        whole = max(1, sum(counts))
        lines.append(Line.through(name, ((360 / BINS * (i + 0.5), BINS * n / whole) for i, n in enumerate(counts))))
    piled_up = max((max(line.y) for line in lines), default=0) > PILED_UP
    empty = " Logarithmic; empty bins are left out." if piled_up else ""
    return curves(
        lines,
        name="anomaly-angles",
        title="Distribution of the initial angle",
        alt="Density of the angle from key to query for each model; a model without preference is a flat line at 1.",
        x_label="initial angle Θ [degrees]",
        y_label="density (1 = uniform)",
        y_log=piled_up,
        marks=((180.0, "anomalous beyond"),),
        note=f"{BINS} bins of ten degrees, all layers, heads and pairs; as trained, at the shortest length.{empty}",
    )


def _heads(number: int, name: str, result: Any) -> HeatMaps:
    return HeatMaps(
        name=f"anomaly-heads-{number}",
        title=f"Anomalous share of {name}",
        alt=f"Share of pairs that begin beyond 180 degrees, in each layer and head of {name}.",
        x_label="head",
        y_label="layer",
        panels=tuple(
            HeatMap(
                title=title,
                x_names=tuple(map(str, range(len(result[key][0])))),
                y_names=tuple(map(str, range(len(result[key])))),
                values=tuple(map(tuple, result[key])),
            )
            for key, title in PANELS.items()
        ),
        low=0.0,
        high=1.0,
    )


def _borders(evaluation: Evaluation, rows: list[GridRow]) -> Table:
    return Table(
        name="anomaly-borders",
        title="Rotary borders crossed, mean over pairs",
        label_columns=("model", "variant", "border"),
        columns=tuple(map(heading, evaluation.points)),
        rows=tuple(
            Row(
                label=(*row.name, border),
                values=figures(row, evaluation.points, lambda result, border=border: result["borders"][border]),
            )
            for row in rows
            for border in BORDERS
        ),
        note="k: where an abnormal region ends, once at most; -q and q: at odd and even multiples of π (Eq. 4).",
    )
