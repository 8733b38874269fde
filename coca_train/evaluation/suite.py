"""A suite: what is measured in each cell of a grid, and the page that shows it.

Each file of suites/ holds `Settings`, a frozen pydantic dataclass with the options of a suite, among them
`suite: Literal["<name>"]`, and `Evaluator`, a `Suite`. A configuration names a suite
(`eval.suite`) as it names a position scheme. Most measure cells (`CellSuite`); one is made of others (reach).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import SUITES
from coca_train.evaluation.verdict import PartsByRow
from coca_train.report.blocks import Document

Settings = TypeVar("Settings")
Material = TypeVar("Material")


class Suite(ABC, Generic[Settings]):
    """What may be asked of a grid: by cells of its own, or by those of the suites that it is made of."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        """Return the last axis of the grid. lengths: those of grid.lengths [tokens]."""
        return tuple(lengths)

    @abstractmethod
    def parts(self) -> "list[CellSuite[Any, Any]]":
        """Return the suites whose cells are measured."""

    @abstractmethod
    def page(self, evaluation: Evaluation) -> Document:
        """Show the results: sections of the blocks that pages.py makes."""

    def reach_parts(self, evaluation: Evaluation) -> PartsByRow:
        """Return by model and variant what the cells say of how far the model reads (verdict.py)."""
        return {}


class CellSuite(Suite[Settings], Generic[Settings, Material]):
    """Measures cells: a model under a variant at a point.

    VERSION: count it up whenever the same inputs give other numbers; cells of other versions are measured again.
    CACHED: false where a cell measured again is another measurement (times). SHARES: whether it asks a model for
    `losses` alone, so that ranks may share each window. AXIS: options that list the points, or judge results; a cell
    does not depend on them.
    """

    VERSION: ClassVar[int]
    CACHED: ClassVar[bool] = True
    SHARES: ClassVar[bool] = False
    AXIS: ClassVar[tuple[str, ...]] = ()

    def parts(self) -> "list[CellSuite[Any, Any]]":
        return [self]

    def options(self, point: Point) -> dict[str, Any]:
        """Return the options that a cell depends on, as plain values: one more point must not make the others new."""
        known: Any = self.settings
        return {key: value for key, value in asdict(known).items() if key not in self.AXIS}

    @abstractmethod
    def prepare(self, subject: Subject, setup: Setup) -> Material:
        """Make what is measured on this model, once: tokens, prompts."""

    @abstractmethod
    def work(self, subject: Subject, points: Sequence[Any], material: Material) -> list[float]:
        """Estimate what cells under the model's variant cost when they are measured in this order, for the time left:
        in tokens where other suites count in them too, as they are added up."""

    @abstractmethod
    def fingerprint(self, material: Material, point: Any) -> str:
        """Return a digest of the material that a cell at this point reads."""

    @abstractmethod
    def impossible(self, subject: Subject, point: Any, material: Material) -> str:
        """Say why a cell cannot be measured; "" when it can."""

    @abstractmethod
    def measure(self, subject: Subject, point: Any, material: Material, setup: Setup) -> Any:
        """Measure this rank's share of one cell, as plain JSON. It calls no collective: a rank that runs out of memory
        would leave the others waiting."""

    @abstractmethod
    def combine(self, point: Any, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
        """Make the cell's result of all ranks' parts, by rank: plain JSON, the same numbers for every world size.
        Called when all ranks have succeeded, on all of them."""


def suite_of(settings: Any) -> Suite[Any]:
    """Return the suite of these settings."""
    return SUITES.module(settings.suite).Evaluator(settings)
