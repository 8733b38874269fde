"""What suites share whose cases were found or not: counts with their interval, by length, by depth, by distance.

A cell of theirs has `cases`, each with `found`, and most with `depth` and `distance`; `counted` makes the figures of
all.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coca_train.evaluation.grid_blocks import heat_maps, share_by_length, table
from coca_train.evaluation.measures.reach import FOUND_SHARE, Part, finds
from coca_train.evaluation.results import Evaluation, GridRow
from coca_train.evaluation.verdict import Asked, unknown
from coca_train.report.blocks import HeatMaps, Line, Lines, Table, Value
from coca_train.report.headlines import POINTS, headline
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import wilson

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
    known = list(cases)
    hits = [case["found"] for case in known]
    if not hits:
        return Value.of(None, missing="no such case")
    low, high = wilson(sum(hits), len(hits))
    share, note = sum(hits) / len(hits), f"{sum(hits)} of {len(hits)}"
    sample = Sample.of_shares(hits, _asked_in(known))
    return Value.of(share, note=note, low=low, high=high, n=len(hits), sample=sample)


def _asked_in(cases: Iterable[Case]) -> str:
    """A digest of what was asked, whatever was answered."""
    asked = [{key: value for key, value in case.items() if key not in ("found", "answer")} for case in cases]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


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
    least = evaluation.settings.get("found_share", FOUND_SHARE)

    def part(row: GridRow) -> Part:
        counts = {int(point): [case["found"] for case in result["cases"]] for point, result in row.results.items()}
        seen = tuple(finds(n, sum(found), len(found), least) for n, found in counts.items())
        whole = Part("finds", "prompts", seen, stopped=row.absence_beyond(max(counts, default=0)), bound=least)
        return whole if seen else unknown(whole, row.cells.values())

    return {row.name: [part(row)] for row in evaluation.rows()}


def at_the_longest(evaluation: Evaluation, what: str, table: Table | None) -> list[str]:
    """In the longest prompts, which model and variant finds most, if any surely does. what: what is found, "passkeys".
    table: of the shares, a row a model and variant."""
    rows = evaluation.rows()
    known = [i for i, point in enumerate(evaluation.points) if any(point in row.results for row in rows)]
    if table is None or not known:
        return []
    where = f"In prompts of {int(evaluation.points[known[-1]]):,} tokens"
    names, quantity = [row.label for row in rows], f"share of the {what} found"
    return [headline(table, known[-1], names, where, "finds most", quantity, POINTS, "prompts")]
