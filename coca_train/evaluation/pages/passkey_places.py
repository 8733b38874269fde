"""Figures of suite `passkey`: accuracy by length inside and outside the training window, by distance, by depth."""

from collections.abc import Mapping, Sequence
from typing import Any

from coca_train.evaluation.measures.proportion import wilson
from coca_train.evaluation.pages.cells import done, rows, windows
from coca_train.evaluation.results import Evaluation, Measured
from coca_train.report.blocks import MISSING, Block, HeatMap, HeatMaps, Line, Lines, Table, Text, Value

Asked = Mapping[str, Any]  # a case of a cell's result

RANGES = (  # of distance, in training windows of the model: from, below
    ("within the window", 0, 1),
    ("1 to 4 windows", 1, 4),
    ("4 to 16 windows", 4, 16),
    ("16 windows and more", 16, None),
)


def share(cases: Sequence[Asked]) -> Value:
    """Of these cases, how many were found; nothing when there are none."""
    if not cases:
        return Value(MISSING.text, note="no such case")
    n_found = sum(case["found"] for case in cases)
    low, high = wilson(n_found, len(cases))
    accuracy = n_found / len(cases)
    return Value(f"{accuracy:.2f}", accuracy, f"{n_found} of {len(cases)}; 95 % interval {low:.2f} to {high:.2f}")


def _curve(label: str, found: Mapping[int, Value], n: Mapping[int, int]) -> Line:
    """Accuracy with its interval. n: cases, by length."""
    known = {length: value.number for length, value in found.items() if value.number is not None}
    bounds = [wilson(round(number * n[length]), n[length]) for length, number in known.items()]
    return Line(
        label=label,
        x=tuple(map(float, known)),
        y=tuple(known.values()),
        low=tuple(low for low, _ in bounds),
        high=tuple(high for _, high in bounds),
    )


def _accuracy(evaluation: Evaluation, name: str, title: str, note: str, chosen: Any) -> Lines:
    """Accuracy by length, of the cases that chosen(case, training window) lets through."""
    lines = []
    for subject, variant in evaluation.rows():
        cells = {
            int(point): [case for case in cell.result["cases"] if chosen(case, subject.training_window)]
            for point, cell in done(evaluation, subject, variant)
        }
        found = {length: share(cases) for length, cases in cells.items()}
        n = {length: len(cases) for length, cases in cells.items()}
        lines.append(_curve(evaluation.label(subject, variant), found, n))
    return Lines(
        name=name,
        title=title,
        alt=f"{title}: share of passkeys found against the length of the prompt, one curve a model and variant.",
        x_label="length of the prompt [tokens]",
        y_label="share of passkeys found",
        lines=tuple(line for line in lines if line.x),
        x_log=True,
        y_limits=(0.0, 1.0),
        marks=windows(evaluation),
        note=note,
    )


def by_length(evaluation: Evaluation) -> Lines:
    return _accuracy(evaluation, "passkey-by-length", "Passkey accuracy by length", "", lambda case, window: True)


def by_window(evaluation: Evaluation, inside: bool) -> Lines:
    """Figure 5 of the CoCA paper: keys less than a training window from the end, and all others."""
    words = "inside" if inside else "outside"
    return _accuracy(
        evaluation,
        f"passkey-{words}-window",
        f"Keys {words} the training window",
        f"Only keys {'less than' if inside else 'at least'} the model's training window away from the end of the "
        "prompt (CoCA paper, figure 5). Lengths without such a case have no point.",
        lambda case, window: (case["distance"] < window) == inside,
    )


def by_distance(evaluation: Evaluation) -> Table:
    def values(subject: Measured, variant: str) -> tuple[Value, ...]:
        cases = [case for _, cell in done(evaluation, subject, variant) for case in cell.result["cases"]]
        window = subject.training_window
        return tuple(
            share(
                [c for c in cases if window * first <= c["distance"] and (end is None or c["distance"] < window * end)]
            )
            for _, first, end in RANGES
        )

    return Table(
        name="passkey-by-distance",
        title="Share of passkeys found by distance of the key",
        label_columns=("model", "variant"),
        columns=tuple(words for words, _, _ in RANGES),
        rows=rows(evaluation, values),
        best="high",
        note="Cases of all lengths together; windows are the model's training window (CoCA paper, figure 6).",
    )


def by_depth(evaluation: Evaluation, n_depths: int) -> list[Block]:
    panels = []
    for subject, variant in evaluation.rows():
        cells = dict(done(evaluation, subject, variant))
        if not cells:
            continue
        columns = [cells[p].result["cases"] if p in cells else [] for p in evaluation.points]
        within = sum(int(point) <= subject.training_window for point in evaluation.points)
        panels.append(
            HeatMap(
                title=evaluation.label(subject, variant),
                x_names=tuple(f"{point:,}" for point in evaluation.points),
                y_names=tuple(f"{row / max(1, n_depths - 1):.0%}" for row in range(n_depths)),
                values=tuple(
                    tuple(
                        share([c for c in cases if depth_row(c["depth"], n_depths) == row]).number for cases in columns
                    )
                    for row in range(n_depths)
                ),
                mark_after_x=within if 0 < within < len(evaluation.points) else None,
            )
        )
    if not panels:
        return [Text(text="Nothing was measured.")]
    return [
        HeatMaps(
            name="passkey-depth",
            title="Passkeys found by length and depth",
            alt="One panel a model and variant: columns are lengths, rows are depths, the beginning on top.",
            x_label="length of the prompt [tokens]",
            y_label="depth of the key",
            panels=tuple(panels),
            low=0.0,
            high=1.0,
            note="A key counts to the nearest row. The line marks the training window.",
        )
    ]


def depth_row(depth: float, n_depths: int) -> int:
    """Which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)
