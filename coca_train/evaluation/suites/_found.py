"""What suites share whose cases were found or not: counts with their interval, by length, by depth, by distance.

A cell of theirs has `cases`, each with `found`, and most with `depth` and `distance`; `counted` makes the figures of
all.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from coca_train.evaluation.grid_blocks import heat_maps, share_by_length, table, tokens
from coca_train.evaluation.measures.reach import Part, finds
from coca_train.evaluation.measures.shares import wilson
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.verdict import Asked
from coca_train.report.blocks import HeatMaps, Line, Lines, Table, Value
from coca_train.report.ties import tied

REACHED = 0.9  # share of cases up to which a length counts as reached
RANGES = {  # of distance, in training windows of the model: from, below
    "within the window": (0, 1),
    "1 to 4 windows": (1, 4),
    "4 to 16 windows": (4, 16),
    "16 windows and more": (16, float("inf")),
}

Case = Mapping[str, Any]


def counted(cases: Sequence[Case]) -> dict[str, Any]:
    """What a cell says of all its cases: the share found (`accuracy`), its 95 % interval, how many there are, and they
    themselves."""
    hits = [case["found"] for case in cases]
    low, high = wilson(sum(hits), len(hits))
    return {"accuracy": sum(hits) / len(hits), "low": low, "high": high, "n_cases": len(hits), "cases": list(cases)}


def share(cases: Iterable[Case]) -> Value:
    """Of these cases of a cell's result, how many were found; nothing when there are none."""
    hits = [case["found"] for case in cases]
    if not hits:
        return Value.of(None, missing="no such case")
    low, high = wilson(sum(hits), len(hits))
    return Value.of(sum(hits) / len(hits), note=f"{sum(hits)} of {len(hits)}", low=low, high=high)


def by_length(
    evaluation: Evaluation, first: float = 0, end: float = math.inf, more: Iterable[Line] = (), **fields: Any
) -> Lines | None:
    """The share found by length, of the cases at these distances [training windows]. more: other curves. fields: other
    ones of Lines."""

    def line(row: GridRow) -> Line:
        hits = {
            int(point): [case["found"] for case in in_range(row, result, first, end)]
            for point, result in row.results.items()
        }
        points = ((n, sum(each) / len(each), *wilson(sum(each), len(each))) for n, each in hits.items() if each)
        return Line.through(row.label, points)

    return share_by_length(evaluation, [*map(line, evaluation.rows()), *more], **fields)


def by_depth(evaluation: Evaluation, n_depths: int, **fields: Any) -> HeatMaps | None:
    """The share found by length and depth. fields: other ones of HeatMaps."""

    def at_depth(row: GridRow, length: int, y: int) -> float | None:
        cases = row.results.get(length, {}).get("cases", ())
        return share(case for case in cases if depth_row(case["depth"], n_depths) == y).number

    return heat_maps(
        [row for row in evaluation.rows() if row.results],
        [int(point) for point in evaluation.points],
        [f"{y / max(1, n_depths - 1):.0%}" for y in range(n_depths)],
        at_depth,
        alt="One panel a model and variant: columns are lengths, rows are depths, the beginning on top.",
        **fields,
    )


def by_distance(evaluation: Evaluation, **fields: Any) -> Table | None:
    """The share found in ranges of the distance, cases of all lengths together. fields: other ones of Table."""

    def column(first: float, end: float) -> Callable[[GridRow], Value]:
        return lambda row: share(case for result in row.results.values() for case in in_range(row, result, first, end))

    return table(evaluation.rows(), {words: column(*ends) for words, ends in RANGES.items()}, best="high", **fields)


def in_range(row: GridRow, result: Mapping[str, Any], first: float, end: float) -> list[Case]:
    """Cases of a result at distances from `first` to below `end` [training windows of the model]; all, where these are
    no bounds."""
    window = row.subject.training_window
    if (first, end) == (0, math.inf):
        return list(result["cases"])
    return [
        case for case in result["cases"] if case["distance"] is not None and first <= case["distance"] / window < end
    ]


def depth_row(depth: float, n_depths: int) -> int:
    """Which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)


def asked(evaluation: Evaluation) -> Asked:
    """Whether prompts of each length give back what is hidden in them."""

    def part(row: GridRow) -> Part:
        counts = {int(point): [case["found"] for case in result["cases"]] for point, result in row.results.items()}
        return Part("finds", "prompts", tuple(finds(n, sum(found), len(found)) for n, found in counts.items()))

    return {row.name: [part(row)] for row in evaluation.rows() if row.results}


def reached(evaluation: Evaluation, what: str) -> list[str]:
    """How far each model reaches, under which variants, and which others cannot be told apart from them there, in
    sentences. what: what is found, "passkeys"."""
    sentences = []
    for subject in evaluation.subjects:
        found = {
            row.variant: {int(point): share(result["cases"]) for point, result in row.results.items()}
            for row in evaluation.rows()
            if row.subject == subject and row.results
        }
        if not found:
            continue
        reach = {variant: _reach(by_length) for variant, by_length in found.items()}
        if farthest := max(reach.values()):
            leading = [variant for variant, n in reach.items() if n == farthest]
            under = _under(leading, _tied_at(found, farthest), len(subject.variants))
            sentences.append(
                f"{subject.name} finds at least nine of ten {what} in prompts of up to {farthest:,} tokens{under}; "
                f"its training window is {subject.training_window:,}."
            )
            continue
        every = [(value.number or 0.0, -n, variant) for variant, by in found.items() for n, value in by.items()]
        best, shortest, first = max(every)
        if not best:
            lengths = [-n for _, n, _ in every]
            sentences.append(f"{subject.name} finds none of the {what} in prompts of {tokens(lengths)}.")
            continue
        leading = [variant for *place, variant in every if place == [best, shortest]]
        under = _under(leading, _tied_at(found, -shortest), len(subject.variants))
        at_most = found[first][-shortest]
        sentences.append(
            f"{subject.name} finds at most {best:.0%} of the {what} ({at_most.range}), in prompts of {-shortest:,} "
            f"tokens{under}."
        )
    return sentences


def _tied_at(found: Mapping[str, Mapping[int, Value]], length: int) -> list[str]:
    """Variants that cannot be told apart from the best at this length."""
    there = {variant: by_length[length] for variant, by_length in found.items() if length in by_length}
    return [list(there)[place] for place in tied(list(there.values()), "high")]


def _reach(found: Mapping[int, Value]) -> int:
    """The longest prompt [tokens] up to which nine of ten are found; 0: not in the shortest."""
    return max((n for n, _ in takewhile(lambda pair: (pair[1].number or 0.0) >= REACHED, found.items())), default=0)


def _under(leading: Sequence[str], tied_: Sequence[str], n_variants: int) -> str:
    if n_variants == 1:
        return ""
    if len(leading) == n_variants:
        return ", whatever the variant"
    others = [variant for variant in tied_ if variant not in leading]
    also = f"; not told apart there: {', '.join(others)}" if others else ""
    return f" ({', '.join(leading)}{also})"
