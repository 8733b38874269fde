"""The report of suite `passkey`: accuracy by length beside the paper's, by depth, and by the key's distance."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from coca_train.evaluation.measures.passkey import wilson
from coca_train.evaluation.pages.grid_blocks import by_point, curves, document, heat_maps, table, training_windows
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.report import paper
from coca_train.report.blocks import MISSING, Document, Line, Lines, Value

DEFINITION = (
    "A prompt has the task, filler, a sentence with a key of five digits, filler, and the question; as many fillers "
    "as keep it within the length. The answer is greedy and comes on top; it is right when the key stands in it as a "
    "whole number. Depth is the share of the fillers before the key; distance is how far its sentence begins from the "
    "end of the prompt [tokens]. Dynamic frequencies see the length and the new tokens throughout. Intervals are "
    "Wilson's, 95 %."
)
BY_WINDOW = (
    "Only keys {} the model's training window away from the end of the prompt (CoCA paper, figure 5). Lengths without "
    "such a case have no point."
)
RANGES = {  # of distance, in training windows of the model: from, below
    "within the window": (0, 1),
    "1 to 4 windows": (1, 4),
    "4 to 16 windows": (4, 16),
    "16 windows and more": (16, float("inf")),
}
REACHED = 0.9  # share of passkeys up to which a length counts as reached

Case = Mapping[str, Any]  # of a cell's result


def page(settings: Any, evaluation: Evaluation) -> Document:
    rows, points, n_depths = evaluation.rows(), evaluation.points, settings.n_depths
    theirs = {
        "table 2": paper.table("table2_passkey"),
        "table 3": _by_alpha(),
        "table 4": paper.table("table4_pi")["passkey"],
    }
    return document(
        evaluation,
        "Passkey retrieval",
        summary=_summary(evaluation),
        sections={
            "Accuracy by length": [
                _accuracy(evaluation, "by-length", "Passkey accuracy by length", "", lambda case, window: True),
                table(
                    rows,
                    by_point(points, lambda result: share(result["cases"])),
                    name="passkey-accuracy",
                    title="Share of passkeys found by length of the prompt [tokens]",
                    theirs=paper.beside(theirs, points),
                    best="high",
                    note="The paper's are of its own models, 100 cases each.",
                ),
            ],
            "Where the key stands": [
                heat_maps(
                    [row for row in rows if row.results],
                    [int(point) for point in points],
                    [f"{y / max(1, n_depths - 1):.0%}" for y in range(n_depths)],
                    lambda row, length, y: (
                        share(
                            c
                            for c in row.results.get(length, {}).get("cases", ())
                            if depth_row(c["depth"], n_depths) == y
                        ).number
                    ),
                    name="passkey-depth",
                    title="Passkeys found by length and depth",
                    alt="One panel a model and variant: columns are lengths, rows are depths, the beginning on top.",
                    y_label="depth of the key",
                    note="A key counts to the nearest row. The line marks the training window.",
                )
            ],
            "How far away the key is": [
                _accuracy(
                    evaluation,
                    "inside-window",
                    "Keys inside the training window",
                    BY_WINDOW.format("less than"),
                    lambda case, window: case["distance"] < window,
                ),
                _accuracy(
                    evaluation,
                    "outside-window",
                    "Keys outside the training window",
                    BY_WINDOW.format("at least"),
                    lambda case, window: case["distance"] >= window,
                ),
                table(
                    rows,
                    {words: lambda row, ends=ends: _in_range(row, *ends) for words, ends in RANGES.items()},
                    name="passkey-by-distance",
                    title="Share of passkeys found by distance of the key",
                    best="high",
                    note="Cases of all lengths together; windows are the model's training window (CoCA paper, figure "
                    "6).",
                ),
            ],
        },
        after={"Definition": [DEFINITION]},
        facts=[("cases", f"{evaluation.settings['n_cases']} at each length")],
    )


def share(cases: Iterable[Case]) -> Value:
    """Of these cases, how many were found; nothing when there are none."""
    hits = [case["found"] for case in cases]
    if not hits:
        return Value(MISSING.text, note="no such case")
    low, high = wilson(sum(hits), len(hits))
    accuracy = sum(hits) / len(hits)
    return Value(f"{accuracy:.2f}", accuracy, f"{sum(hits)} of {len(hits)}; 95 % interval {low:.2f} to {high:.2f}")


def _accuracy(
    evaluation: Evaluation, name: str, title: str, note: str, chosen: Callable[[Case, int], bool]
) -> Lines | None:
    """Accuracy by length, of the cases that chosen(case, training window) lets through."""

    def line(row: GridRow) -> Line:
        hits = {
            int(point): [case["found"] for case in result["cases"] if chosen(case, row.subject.training_window)]
            for point, result in row.results.items()
        }
        return Line.through(
            row.label, ((n, sum(each) / len(each), *wilson(sum(each), len(each))) for n, each in hits.items() if each)
        )

    return curves(
        map(line, evaluation.rows()),
        name=f"passkey-{name}",
        title=title,
        alt=f"{title}: share of passkeys found against the length of the prompt, one curve a model and variant.",
        x_label="length of the prompt [tokens]",
        y_label="share of passkeys found",
        x_log=True,
        y_limits=(0.0, 1.0),
        marks=training_windows(evaluation),
        note=note,
    )


def _in_range(row: GridRow, first: float, end: float) -> Value:
    """first, end: distances in training windows."""
    cases = [case for result in row.results.values() for case in result["cases"]]
    return share(case for case in cases if first <= case["distance"] / row.subject.training_window < end)


def depth_row(depth: float, n_depths: int) -> int:
    """Which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)


def _by_alpha() -> paper.Series:
    """Table 3: slack and strict CoCA with dynamic NTK of alpha 2, 4 and 8; strict is printed as a difference."""
    printed = paper.table("table3_slack_vs_strict")["passkey"]
    series: dict[str, Sequence[float]] = {}
    for alpha, slack in printed["slack"].items():
        more = printed["strict_minus_slack"][alpha]
        series[f"coca+dynamic_ntk+slack, alpha {alpha}"] = slack
        series[f"coca+dynamic_ntk+strict, alpha {alpha}"] = [round(a + b, 2) for a, b in zip(slack, more, strict=True)]
    return series


def _summary(evaluation: Evaluation) -> list[str]:
    """How far each model reaches, and under which variants."""
    sentences = []
    for subject in evaluation.subjects:
        accuracies = {
            row.variant: {int(point): result["accuracy"] for point, result in row.results.items()}
            for row in evaluation.rows()
            if row.subject == subject and row.results
        }
        if not accuracies:
            continue
        reach = {variant: _reach(by_length) for variant, by_length in accuracies.items()}
        if farthest := max(reach.values()):
            under = _under([variant for variant, n in reach.items() if n == farthest], len(subject.variants))
            sentences.append(
                f"{subject.name} finds at least nine of ten passkeys in prompts of up to {farthest:,} tokens{under}; "
                f"its training window is {subject.training_window:,}."
            )
            continue
        every = [(hits, -n, variant) for variant, by_length in accuracies.items() for n, hits in by_length.items()]
        best, shortest, _ = max(every)
        under = _under([variant for *place, variant in every if place == [best, shortest]], len(subject.variants))
        sentences.append(f"{subject.name} finds {best:.0%} at best, in prompts of {-shortest:,} tokens{under}.")
    return sentences


def _reach(accuracy: Mapping[int, float]) -> int:
    """The longest prompt [tokens] up to which nine of ten are found; 0: not in the shortest."""
    return max((n for n, _ in takewhile(lambda pair: pair[1] >= REACHED, accuracy.items())), default=0)


def _under(variants: Sequence[str], n_variants: int) -> str:
    if n_variants == 1:
        return ""
    return ", whatever the variant" if len(variants) == n_variants else f" ({', '.join(variants)})"
