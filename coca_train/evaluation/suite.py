"""A suite: what is measured in each cell of a grid, and the page that shows it.

Each file of suites/ holds `Settings`, a frozen pydantic dataclass with the options of a suite, among them
`suite: Literal["<name>"]`, and `Evaluator`, a `Suite`. A configuration names a suite
(`eval.suite`) as it names a position scheme. Most measure cells (`CellSuite`); one is made of others (reach).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from coca_train.evaluation.results import Evaluation, Point, Result
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import SUITES
from coca_train.evaluation.verdict import PartsByRow
from coca_train.report.blocks import Document


class SuiteSettings(Protocol):
    """What the settings of suites have in common."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def suite(self) -> str: ...


Settings = TypeVar("Settings", bound=SuiteSettings)
Material = TypeVar("Material")
Part = TypeVar("Part")  # what a rank measured of one item of a cell (a document, a prompt), as plain JSON


class Suite(ABC, Generic[Settings, Result]):
    """What may be asked of a grid: by cells of its own, or by those of the suites that it is made of."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def points(self, lengths: Sequence[int]) -> tuple[Point, ...]:
        """Return the last axis of the grid. lengths: those of grid.lengths [tokens]."""
        return tuple(lengths)

    @abstractmethod
    def parts(self) -> "list[AnySuite]":
        """Return the suites whose cells are measured."""

    @abstractmethod
    def page(self, evaluation: Evaluation[Result]) -> Document:
        """Show the results: sections of the blocks that pages.py makes."""

    def reach_parts(self, evaluation: Evaluation[Result]) -> PartsByRow:
        """Return by model and variant what the cells say of how far the model reads (verdict.py)."""
        return {}


class CellSuite(Suite[Settings, Result], Generic[Settings, Material, Part, Result]):
    """Measures cells: a model under a variant at a point. Result: a TypedDict of plain JSON.

    VERSION: count it up whenever the same inputs give other numbers; cells of other versions are measured again.
    CACHED: false where a cell measured again is another measurement (times). SHARES: whether it asks a model for
    `losses` alone, so that ranks may share each window. BIDIRECTIONAL: whether it asks models that read in both
    directions. AXIS: options that list the points, or judge results; a cell
    does not depend on them.
    """

    VERSION: ClassVar[int]
    CACHED: ClassVar[bool] = True
    SHARES: ClassVar[bool] = False
    BIDIRECTIONAL: ClassVar[bool] = False
    AXIS: ClassVar[tuple[str, ...]] = ()

    def parts(self) -> "list[AnySuite]":
        return [self]

    def options(self, point: Point) -> dict[str, object]:
        """Return the options that a cell depends on, as plain values: one more point must not make the others new."""
        return {key: value for key, value in asdict(self.settings).items() if key not in self.AXIS}

    @abstractmethod
    def prepare(self, subject: Subject, setup: Setup) -> Material:
        """Make what is measured on this model, once: tokens, prompts."""

    @abstractmethod
    def work(self, subject: Subject, points: Sequence[Point], material: Material) -> list[float]:
        """Estimate what cells under the model's variant cost when they are measured in this order, for the time left:
        in tokens where other suites count in them too, as they are added up."""

    @abstractmethod
    def fingerprint(self, material: Material, point: Point) -> str:
        """Return a digest of the material that a cell at this point reads."""

    @abstractmethod
    def impossible(self, subject: Subject, point: Point, material: Material) -> str:
        """Say why a cell cannot be measured; "" when it can."""

    @abstractmethod
    def measure(self, subject: Subject, point: Point, material: Material, setup: Setup) -> Mapping[str, Part]:
        """Measure this rank's share of one cell: what it made of each item, by a name that no other rank gives. It
        calls no collective: a rank that runs out of memory would leave the others waiting."""

    @abstractmethod
    def combine(self, point: Point, material: Material, parts: Mapping[str, Part]) -> Result:
        """Make the cell's result of all ranks' items, by rank: the same numbers for every world size. Called when all
        ranks have succeeded, on all of them."""


AnySuite: TypeAlias = CellSuite[Any, Any, Any, Any]


def suite_of(settings: SuiteSettings) -> Suite[Any, Any]:
    """Return the suite of these settings."""
    return SUITES.module(settings.suite).Evaluator(settings)
