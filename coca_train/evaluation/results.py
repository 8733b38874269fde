"""What an evaluation found: one record a cell of its grid, and who was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Point = int | str  # a length [tokens], or the name of what a suite measures at this place of the grid
Status = Literal["done", "out_of_memory", "impossible"]

OWN = "own"  # the variant a model was trained with
RESULTS = "results.json"  # an Evaluation, beside its report
ALL = "all"  # the text of all sources together


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model that was measured. training_window [tokens]. step: optimizer steps, None where unknown (an import)."""

    name: str
    path: str
    kind: str  # run or huggingface
    scheme: str
    training_window: int
    n_parameters: int
    step: int | None
    weights: str  # digest
    variants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell. result: what the suite's `combine` made, plain JSON; empty unless status is done.

    reason: why there is no result. seconds: of measuring it, when it was measured.
    """

    subject: str
    variant: str
    point: Point
    status: Status
    result: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All of it. settings: of the suite. facts: what was run, label and value. command: how to run it again."""

    suite: str
    name: str
    settings: Mapping[str, Any]
    subjects: Sequence[Measured]
    points: Sequence[Point]
    cells: Sequence[Cell]
    facts: Sequence[tuple[str, str]]
    command: str

    def find(self, subject: str, variant: str, point: Point) -> Cell | None:
        """The cell, whatever became of it; None when it was not asked for."""
        for cell in self.cells:
            if (cell.subject, cell.variant, cell.point) == (subject, variant, point):
                return cell
        return None

    def rows(self) -> list[tuple[Measured, str]]:
        """Every model under every variant that could be measured somewhere, in order."""
        tried = {(cell.subject, cell.variant) for cell in self.cells if cell.status != "impossible"}
        return [(s, variant) for s in self.subjects for variant in s.variants if (s.name, variant) in tried]

    def label(self, subject: Measured, variant: str) -> str:
        """What a row is called: the model, and the variant where there are several."""
        return subject.name if len(subject.variants) == 1 else f"{subject.name}, {variant}"

    def absences(self) -> list[str]:
        """What was not measured and why, a sentence each; equal reasons of one row together."""
        found: dict[tuple[str, str, str], list[Point]] = {}
        for cell in self.cells:
            if cell.status != "done":
                words = "out of memory" if cell.status == "out_of_memory" else cell.reason
                found.setdefault((cell.subject, cell.variant, words), []).append(cell.point)
        return [
            f"{subject}, {variant}{'' if len(at) == len(self.points) else ' at ' + ', '.join(map(str, at))}: {words}"
            for (subject, variant, words), at in found.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Evaluation":
        """Raises KeyError, TypeError or ValueError when `data` did not come from `to_json`."""
        subjects = tuple(Measured(**{**s, "variants": tuple(s["variants"])}) for s in data["subjects"])
        cells = tuple(Cell(**cell) for cell in data["cells"])
        facts = tuple((label, value) for label, value in data["facts"])
        known = {"subjects": subjects, "cells": cells, "facts": facts, "points": tuple(data["points"])}
        return cls(**{**data, **known})
