"""What there is to see of the rotational anomaly: angles, heads, borders, reach."""

from typing import Any

from coca_train.evaluation.measures.angles import BINS, BORDERS
from coca_train.evaluation.pages.cells import done, figure, not_measured, rows, windows
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.report.blocks import Block, Document, HeatMap, HeatMaps, Line, Lines, Row, Section, Table, Text, Value

PILED_UP = 10.0  # a density beyond which the others would be flat lines

ABOUT = (
    "Pair j of a head begins at the angle Θ from its key to its query, counter-clockwise, before any rotation. With "
    "Θ > π (anomalous; scenario (d) of the CoCA paper) the score first rises while the distance grows, for as long as "
    "m - n < (2π - Θ)/θ_j: the abnormal region. CoCA's keys are collinear with their queries, so Θ = 0."
)
SHARES = (
    "Shares of sampled pairs of tokens n < m, over all layers, heads and pairs of features that have an angle. "
    "weighted: by |q||k|. as placed: of the angle in the score less (m - n)θ_j, which is not Θ for slack CoCA only "
    "(Eq. 11 without Eq. 12 rotates t, not the key). without: no angle, because a vector is 0 (t = 0)."
)


def page(settings: Any, evaluation: Evaluation) -> Document:
    """The document; models without angles appear with the reason."""
    return Document(
        title=f"Rotational anomaly: {evaluation.name}",
        summary=_summary(evaluation),
        sections=(
            Section(title="Initial angles", blocks=(Text(text=ABOUT), _shares(evaluation), *_densities(evaluation))),
            Section(title="By layer and head", blocks=_heads(evaluation)),
            Section(title="Borders by length", blocks=(_abnormal(evaluation), _borders(evaluation))),
            Section(title="How far the anomaly reaches", blocks=_reach(evaluation)),
            *not_measured(evaluation),
        ),
        facts=evaluation.facts,
        command=evaluation.command,
    )


def _first(evaluation: Evaluation, subject: Measured, variant: str) -> Cell | None:
    """The cell at the shortest length."""
    return evaluation.find(subject.name, variant, evaluation.points[0])


def _own(evaluation: Evaluation) -> list[tuple[Measured, Cell]]:
    """Every model as it was trained, at the shortest length that has a result."""
    found = ((subject, done(evaluation, subject, subject.variants[0])) for subject in evaluation.subjects)
    return [(subject, cells[0][1]) for subject, cells in found if cells]


def _summary(evaluation: Evaluation) -> list[str]:
    return [
        f"{subject.name} ({subject.scheme}): {_percent(cell.result['anomalous'])} of its pairs begin anomalous; "
        f"{_percent(cell.result['abnormal'])} lie in the abnormal region at {int(cell.point):,} tokens."
        for subject, cell in _own(evaluation)
    ]


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _shares(evaluation: Evaluation) -> Table:
    names = {"anomalous": "anomalous", "weighted": "weighted", "placed": "as placed", "empty": "without"}

    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        cell = _first(evaluation, subject, variant)
        return tuple(figure(cell, lambda result, key=key: result[key], "{:.1%}") for key in names)

    return Table(
        name="anomaly-shares",
        title=f"Share in the anomalous sector, at {int(evaluation.points[0]):,} tokens",
        label_columns=("model", "variant"),
        columns=tuple(names.values()),
        rows=rows(evaluation, values),
        note=SHARES,
    )


def _densities(evaluation: Evaluation) -> list[Block]:
    lines = []
    for subject, cell in _own(evaluation):
        counts = [sum(column) for column in zip(*cell.result["histogram_by_pair"], strict=True)]
        density = tuple(BINS * count / max(1, sum(counts)) for count in counts)
        middles = tuple(360 / BINS * (index + 0.5) for index in range(BINS))
        lines.append(Line(label=subject.name, x=middles, y=density))
    if not lines:
        return []
    piled_up = max(max(line.y) for line in lines) > PILED_UP
    empty = " Logarithmic; empty bins are left out." if piled_up else ""
    block = Lines(
        name="anomaly-angles",
        title="Distribution of the initial angle",
        alt="Density of the angle from key to query for each model; a model without preference is a flat line at 1.",
        x_label="initial angle Θ [degrees]",
        y_label="density (1 = uniform)",
        lines=tuple(lines),
        y_log=piled_up,
        marks=((180.0, "anomalous beyond"),),
        note=f"{BINS} bins of ten degrees, all layers, heads and pairs; as trained, at the shortest length.{empty}",
    )
    return [block]


def _heads(evaluation: Evaluation) -> list[Block]:
    blocks: list[Block] = []
    for index, (subject, cell) in enumerate(_own(evaluation)):
        panels = tuple(
            HeatMap(
                title=title,
                x_names=tuple(str(head) for head in range(len(cell.result[key][0]))),
                y_names=tuple(str(layer) for layer in range(len(cell.result[key]))),
                values=tuple(tuple(row) for row in cell.result[key]),
            )
            for key, title in (("by_head", "counted"), ("weighted_by_head", "weighted by |q||k|"))
        )
        blocks.append(
            HeatMaps(
                name=f"anomaly-heads-{index + 1}",
                title=f"Anomalous share of {subject.name}",
                alt=f"Share of pairs that begin beyond 180 degrees, in each layer and head of {subject.name}.",
                x_label="head",
                y_label="layer",
                panels=panels,
                low=0.0,
                high=1.0,
            )
        )
    return blocks


def _abnormal(evaluation: Evaluation) -> Table:
    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        cells = (evaluation.find(subject.name, variant, point) for point in evaluation.points)
        return tuple(figure(cell, lambda result: result["abnormal"], "{:.1%}") for cell in cells)

    return Table(
        name="anomaly-abnormal",
        title="Share of pairs in the abnormal region",
        label_columns=("model", "variant"),
        columns=tuple(f"{point:,}" for point in evaluation.points),
        rows=rows(evaluation, values),
        note="Of all pairs n < m of a window of this length, those with m - n < (2π - Θ)/θ_j and Θ > π.",
    )


def _borders(evaluation: Evaluation) -> Table:
    found = [
        Row(
            label=(subject.name, variant, border),
            values=tuple(
                figure(evaluation.find(subject.name, variant, point), lambda result, b=border: result["borders"][b])
                for point in evaluation.points
            ),
        )
        for subject, variant in evaluation.rows()
        for border in BORDERS
    ]
    return Table(
        name="anomaly-borders",
        title="Rotary borders crossed, mean over pairs",
        label_columns=("model", "variant", "border"),
        columns=tuple(f"{point:,}" for point in evaluation.points),
        rows=tuple(found),
        note="k: where an abnormal region ends, once at most; -q and q: at odd and even multiples of π (Eq. 4).",
    )


def _reach(evaluation: Evaluation) -> list[Block]:
    reach, slowed = [], []
    for subject, variant in evaluation.rows():
        cells = done(evaluation, subject, variant)
        if not cells:
            continue
        result, label = cells[-1][1].result, evaluation.label(subject, variant)
        known = [(float(j), tokens) for j, tokens in enumerate(result["reach_by_pair"]) if tokens is not None]
        if known:
            x, y = zip(*known, strict=True)
            reach.append(Line(label=label, x=x, y=y))
        pairs = tuple(map(float, range(len(result["slowed_by_pair"]))))
        slowed.append(Line(label=label, x=pairs, y=tuple(result["slowed_by_pair"])))
    common: dict[str, Any] = {"x_label": "pair j (0 turns fastest)", "y_log": True}
    blocks: list[Block] = []
    if reach:
        note = (
            "Training windows: " + ", ".join(f"{window:,.0f} ({words})" for window, words in windows(evaluation)) + "."
        )
        alt = "Mean number of nearest tokens under the anomaly, by pair of features; it grows as the pairs turn slower."
        title = "Tokens under the anomaly, mean of (2π - Θ)/θ_j over anomalous pairs"
        blocks.append(
            Lines(
                name="anomaly-reach", title=title, alt=alt, y_label="[tokens]", lines=tuple(reach), note=note, **common
            )
        )
    if slowed:
        note = "At the longest length. The paper (2.3) gives s for position interpolation and λ^(2j/d) for NTK."
        alt = "Factor by which each pair's abnormal region is longer than with unscaled frequencies."
        title = "How much longer other frequencies make it"
        blocks.append(
            Lines(
                name="anomaly-slowed", title=title, alt=alt, y_label="factor", lines=tuple(slowed), note=note, **common
            )
        )
    return blocks
