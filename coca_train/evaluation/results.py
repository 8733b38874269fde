"""The outcome of an evaluation: one record a cell of its grid, and who was measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from coca_train.evaluation.naming import called, with_variant
from coca_train.runtime.durable import sealed, unsealed

Point = int | str  # a length [tokens], or the name of what a suite measures at this place of the grid
Status = Literal["done", "out_of_memory", "impossible"]

RESULTS = "results.json"  # an Evaluation, beside its report
ALL = "all"  # the text of all sources together


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model that was measured. training_window [tokens]. step: optimizer steps, None where unknown (an import).
    tokenizer: its digest, "" in reports that are older than this field."""

    name: str
    path: str
    kind: str  # run or huggingface
    scheme: str
    training_window: int
    n_parameters: int
    step: int | None
    weights: str  # digest
    variants: tuple[str, ...]
    tokenizer: str = ""


def same_tokens(subjects: Iterable[Measured]) -> bool:
    """Whether a text is the same tokens for all of them, as far as is known: only then are losses a token a
    comparison."""
    return len({subject.tokenizer for subject in subjects} - {""}) < 2


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell. result: what the suite's `combine` made, plain JSON; empty unless status is done.

    reason: why there is no result. seconds: of measuring it, when it was measured. suite: whose it is, where an
    evaluation asks several.
    """

    subject: str
    variant: str
    point: Point
    status: Status
    result: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    suite: str = ""

    @property
    def absence(self) -> str:
        """Why it has no result; "" when it has one."""
        return {"done": "", "out_of_memory": "out of memory", "impossible": self.reason}[self.status]


class GridRow(NamedTuple):
    """One model under one variant. label: what legends and sentences call it (naming.py).

    cells: by point, in the order of the points, whatever became of them.
    """

    subject: Measured
    variant: str
    label: str
    cells: Mapping[Point, Cell]

    @property
    def name(self) -> tuple[str, str]:
        """Model and variant: the first columns of most tables."""
        return self.subject.name, self.variant

    @property
    def called(self) -> tuple[str, str]:
        """The same as the label has them."""
        model, _, variant = self.label.partition(" + ")
        return model, variant or self.variant

    @property
    def results(self) -> dict[Point, Mapping[str, Any]]:
        """Of the cells that have one, in the order of the points."""
        return {point: cell.result for point, cell in self.cells.items() if cell.result}

    @property
    def last(self) -> Mapping[str, Any]:
        """The result at the last point that has one, the longest where points are lengths; {} without any."""
        return next(reversed(self.results.values()), {})

    def absence_beyond(self, length: int) -> str:
        """Why the first length that was asked beyond this one [tokens] has no result; "" when it has one, or nothing
        was asked. Points are lengths."""
        return next((cell.absence for point, cell in self.cells.items() if int(point) > length), "")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All of it. settings: of the suite. facts: what was run, label and value. command: how to run it again.

    seeds: by model, its subjects and the seed that each was trained with, where that is known (seeds.py).
    """

    suite: str
    name: str
    settings: Mapping[str, Any]
    subjects: Sequence[Measured]
    points: Sequence[Point]
    cells: Sequence[Cell]
    facts: Sequence[tuple[str, str]]
    command: str
    seeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def find(self, subject: str, variant: str, point: Point) -> Cell | None:
        """The cell, whatever became of it; None when it is not of this grid."""
        return self._by_place().get((subject, variant, point))

    def rows(self) -> list[GridRow]:
        """Every model under every variant that could be measured somewhere, in order."""
        by_place = self._by_place()
        # A variant that is impossible everywhere would be a row of dashes; "Not measured" has its reason.
        tried = {(cell.subject, cell.variant) for cell in self.cells if cell.status != "impossible"}
        rows, names = [], called({subject.name: subject.scheme for subject in self.subjects})
        for subject in self.subjects:
            for variant in subject.variants:
                if (subject.name, variant) in tried:
                    label = with_variant(names[subject.name], variant)
                    places = {point: (subject.name, variant, point) for point in self.points}
                    cells = {point: by_place[place] for point, place in places.items() if place in by_place}
                    rows.append(GridRow(subject, variant, label, cells))
        return rows

    def _by_place(self) -> dict[tuple[str, str, Point], Cell]:
        return {(cell.subject, cell.variant, cell.point): cell for cell in self.cells}

    def reduced(self, part: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> "Evaluation":
        """The same with only a part of every result: one text of several, say. An empty part shows nothing."""
        cells = [replace(cell, result=part(cell.result)) if cell.result else cell for cell in self.cells]
        return replace(self, cells=tuple(cells))

    def of_suite(self, settings: Mapping[str, Any], points: Sequence[Point]) -> "Evaluation":
        """What one of several suites measured. settings, points: its own."""
        cells = tuple(cell for cell in self.cells if cell.suite == settings["suite"])
        return replace(self, suite=settings["suite"], settings=settings, points=points, cells=cells)

    def absences(self) -> list[str]:
        """Cells without a result and why, a sentence each; equal reasons of one row together."""
        points: dict[tuple[str, str, str], list[Point]] = {}
        for cell in self.cells:
            if cell.status != "done":
                points.setdefault((cell.subject, cell.variant, cell.absence), []).append(cell.point)
        return [
            f"{subject}, {variant}{'' if len(at) == len(self.points) else ' at ' + ', '.join(map(str, at))}: {reason}"
            for (subject, variant, reason), at in points.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return sealed(asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Evaluation":
        """Raises KeyError, TypeError or ValueError when `data` did not come from `to_json`."""
        data = unsealed(data)
        subjects = tuple(Measured(**{**s, "variants": tuple(s["variants"])}) for s in data["subjects"])
        cells = tuple(Cell(**cell) for cell in data["cells"])
        facts = tuple((label, value) for label, value in data["facts"])
        known = {"subjects": subjects, "cells": cells, "facts": facts, "points": tuple(data["points"])}
        return cls(**{**data, **known})
