"""Suites that ask a model with prompts made for a length: how prompts are fitted, asked, counted and shown.

Length. A prompt is built around a number of units (sentences, pairs). At length L [tokens] it gets a size at which it
has at most L tokens, and either at least 99 % of them, or more than L with one unit more. When the smallest prompt is
longer than L, there is none.

Draws. A case's draws come from a generator seeded by (suite, seed, L, number of the case), the same at every size
tried; so neither the number of cases nor another tokenizer changes what is drawn.
"""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Generic, Literal, Protocol, TypedDict, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import best_at_the_longest, by_point, document, heat_maps, share_curves, table
from coca_train.evaluation.results import Evaluation, GridRow, Point, Result
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite, SuiteSettings
from coca_train.evaluation.suites._documents import in_order
from coca_train.evaluation.verdict import Name, Part, PartsByRow, finds, unmeasured, verdicts
from coca_train.models.continuations import continuations
from coca_train.report.blocks import Block, Document, Line, Lines, Row, Table, Value
from coca_train.report.headlines import POINTS
from coca_train.runtime import dist
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import wilson

PROBE = 32  # units more than the smallest prompt, to see what a unit costs
FULL = 0.99  # share of a length that a prompt must fill
RANGES = {  # of distance, in training windows of the model: from, below
    "within the window": (0.0, 1.0),
    "1 to 4 windows": (1.0, 4.0),
    "4 to 16 windows": (4.0, 16.0),
    "16 windows and more": (16.0, math.inf),
}

Encode = Callable[[str], list[int]]
Places = Literal["uniform", "even"]


class Prompt(Protocol):
    """A prompt as one model reads it."""

    @property
    def tokens(self) -> Sequence[int]: ...


class Hidden(Prompt, Protocol):
    """A prompt that hides something. depth: 0 to 1. distance: from there to the end [tokens]."""

    @property
    def depth(self) -> float: ...
    @property
    def distance(self) -> int: ...


class PromptSettings(SuiteSettings, Protocol):
    """What the settings of suites that ask prompts have in common."""

    @property
    def n_cases(self) -> int: ...
    @property
    def found_share(self) -> float: ...


T = TypeVar("T", bound=Prompt)
H = TypeVar("H", bound=Hidden)
Options = TypeVar("Options", bound=PromptSettings)


def fill_prompts(build: Callable[[int, int], T], n_cases: int, length: int, least: int) -> list[T]:
    """Return the prompts of one length [tokens]; none when it has no room. build(case, size); least: smallest size."""
    prompts = []
    for case in range(n_cases):
        prompt = fit_prompt(partial(build, case), length, least)
        if prompt is None:
            return []
        prompts.append(prompt)
    return prompts


def fit_prompt(build: Callable[[int], T], length: int, least: int) -> T | None:
    """Return the prompt of the size that fits (see the module); None when the smallest one is too long."""
    best = build(least)
    n_fixed, size, low, high, halve = len(best.tokens), least + PROBE, least, None, False
    if n_fixed > length:
        return None
    while (high is None or high - low > 1) and len(best.tokens) < FULL * length:
        prompt = build(size)
        if len(prompt.tokens) <= length:
            best, low = prompt, size
        else:
            high = size
        # A guess by what units have cost on average lands close; a bisection alone would take ten prompts and more.
        per_unit = max(1, len(prompt.tokens) - n_fixed) / (size - least)
        size = max(low + 1, least + math.floor((length - n_fixed) / per_unit))
        if high is not None:  # every other size is the middle one, so that it ends soon whatever units cost
            size = (low + high) // 2 if halve or size >= high else size
            halve = not halve
    return best


def choose_place(share: float, case: int, last: int, places: Places, n_depths: int) -> int:
    """Return which of the places 0 ... last a case has. uniform: by its share in [0, 1). even: that at the depth
    (case mod n_depths) / (n_depths - 1), rounded, so that equally many cases have each depth."""
    if places == "uniform":
        return int(share * (last + 1))
    return round(last * (case % n_depths) / max(1, n_depths - 1))


class PromptSuite(CellSuite[Options, Mapping[Point, Sequence[T]], str, Result], Generic[Options, T, Result]):
    """Asks prompts for greedy answers. PART: what it says of a model's reach."""

    AXIS = ("found_share",)
    PART: ClassVar[Name] = "finds"

    @abstractmethod
    def no_room(self, subject: Subject, point: Point) -> str:
        """Say that a point has no room for a prompt."""

    @abstractmethod
    def expected(self, case: T) -> Sequence[str]:
        """Return what an answer must contain."""

    @abstractmethod
    def max_new_tokens(self, point: Point, cases: Sequence[T]) -> int:
        """Return the length of an answer [tokens]."""

    def prompt_length(self, point: Point) -> int:
        """Return the limit of the prompts [tokens]: dynamic frequencies see it and the new tokens, however long one
        prompt is."""
        return int(point)

    def work(self, subject: Subject, points: Sequence[Point], material: Mapping[Point, Sequence[T]]) -> list[float]:
        """Estimate the work [tokens]."""
        new = {point: self.max_new_tokens(point, material[point]) for point in points}
        return [float(sum(len(case.tokens) + new[point] for case in material[point])) for point in points]

    def fingerprint(self, material: Mapping[Point, Sequence[T]], point: Point) -> str:
        whole = hashlib.sha256()
        for case in material[point]:
            whole.update(f"{list(case.tokens)} {list(self.expected(case))}\n".encode())
        return whole.hexdigest()

    def impossible(self, subject: Subject, point: Point, material: Mapping[Point, Sequence[T]]) -> str:
        if not material[point]:
            return self.no_room(subject, point)
        needed = max(len(case.tokens) for case in material[point]) + self.max_new_tokens(point, material[point])
        problem = missing_positions(subject.model, needed)
        return problem and f"{problem}, and prompt and answer need {needed:,}"

    def measure(
        self, subject: Subject, point: Point, material: Mapping[Point, Sequence[T]], setup: Setup
    ) -> dict[str, str]:
        """Return by index the answer to each of this rank's prompts: which rank answers which depends on their number,
        and the order must not."""
        n_new = self.max_new_tokens(point, material[point])
        new_tokens = continuations(
            subject.model,
            [case.tokens for case in material[point]],
            n_new,
            length=self.prompt_length(point) + n_new,
            micro_batch_tokens=setup.micro_batch_tokens,
            eod=subject.tokenizer.eod,
            rank=dist.rank(),
            n_ranks=dist.world_size(),
            progress=setup.progress,
        )
        return {str(index): subject.tokenizer.decode(tokens) for index, tokens in new_tokens.items()}

    @abstractmethod
    def hits(self, evaluation: Evaluation[Result], row: GridRow[Result]) -> tuple[dict[int, list[bool]], str]:
        """Return by length, whether each prompt was answered as it must be; and why no longer ones were asked."""

    def reach_parts(self, evaluation: Evaluation[Result]) -> PartsByRow:
        least, parts = self.settings.found_share, {}
        for row in evaluation.rows():
            hits, stopped = self.hits(evaluation, row)
            evidence = tuple(finds(n, sum(found), len(found), least) for n, found in hits.items())
            part = Part(self.PART, "prompts", evidence, stopped=stopped, bound=least)
            parts[row.name] = [part if evidence else unmeasured(part, row.cells.values())]
        return parts


class FoundCase(TypedDict):
    """A prompt and its answer. hidden: what was to be found. depth, distance: as in `Hidden`."""

    hidden: str
    depth: float
    distance: int
    found: bool
    answer: str


class Found(TypedDict):
    """accuracy: the share found, with its 95 % interval. more: what else the suite counts, as shares."""

    accuracy: float
    low: float
    high: float
    n_cases: int
    cases: list[FoundCase]
    more: dict[str, float]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FoundSettings:
    """What suites that hide something have in common."""

    suite: str
    n_cases: Positive = Field(description="prompts of each length; CoCA paper 100, YaRN 10")
    places: Places = Field(
        description="where it is hidden. uniform: drawn for each case (YaRN); even: at n_depths depths in turn, from "
        "the first place to the last"
    )
    n_depths: Positive = Field(description="depths of places=even, and rows of the heat maps")
    found_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a length counts as found when surely more than this share of its prompts is answered as it must be"
    )


Placed = TypeVar("Placed", bound=FoundSettings)


class FoundSuite(PromptSuite[Placed, H, Found], Generic[Placed, H]):
    """Counts the cases whose hidden item was found. NAME: of its blocks. ITEM, ITEMS: what is hidden, in words. KEPT:
    of each answer [characters]."""

    NAME: ClassVar[str]
    ITEM: ClassVar[str]
    ITEMS: ClassVar[str]
    KEPT: ClassVar[int]

    @abstractmethod
    def prompts(self, subject: Subject, length: int, seed: int) -> list[H]:
        """Make the prompts of a length; none when it has no room."""

    @abstractmethod
    def is_right(self, case: H, answer: str) -> bool:
        """Return whether it was found."""

    @abstractmethod
    def more(self, cases: Sequence[H], answers: Sequence[str]) -> dict[str, float]:
        """Return what else a cell says of its answers, as shares."""

    def prepare(self, subject: Subject, setup: Setup) -> dict[Point, list[H]]:
        return {point: self.prompts(subject, int(point), setup.seed) for point in setup.points}

    def combine(self, point: Point, material: Mapping[Point, Sequence[H]], parts: Mapping[str, str]) -> Found:
        asked, answers = material[point], in_order(parts)
        cases: list[FoundCase] = [
            {
                "hidden": self.expected(case)[0],
                "depth": case.depth,
                "distance": case.distance,
                "found": self.is_right(case, answer),
                "answer": answer[: self.KEPT],
            }
            for case, answer in zip(asked, answers, strict=True)
        ]
        n_found, n = sum(case["found"] for case in cases), len(cases)
        low, high = wilson(n_found, n)
        more = self.more(asked, answers)
        return {"accuracy": n_found / n, "low": low, "high": high, "n_cases": n, "cases": cases, "more": more}

    def hits(self, evaluation: Evaluation[Found], row: GridRow[Found]) -> tuple[dict[int, list[bool]], str]:
        hits = {int(point): [case["found"] for case in result["cases"]] for point, result in row.results.items()}
        return hits, row.absence_beyond(max(hits, default=0))

    def found_page(
        self,
        evaluation: Evaluation[Found],
        title: str,
        *,
        definition: str,
        facts: Sequence[tuple[str, str]] = (),
        note: str = "",
        theirs: Sequence[Row] = (),
        tables: Iterable[Block | None] = (),
        distances: Iterable[Block | None] = (),
    ) -> Document:
        """Show what was found by length, depth and distance. note, theirs: of the table by length. tables, distances:
        other blocks about lengths and about distances."""
        rows, n_depths, n_cases = evaluation.rows(), self.settings.n_depths, self.settings.n_cases
        found = table(
            rows,
            by_point(evaluation.points, lambda result: share_found(result["cases"])),
            name=f"{self.NAME}-found",
            title=f"Share of {self.ITEMS} found by length of the prompt [tokens]",
            best="high",
            note=note,
            theirs=theirs,
        )

        def at_depth(row: GridRow[Found], length: int, y: int) -> float | None:
            cases = row.results[length]["cases"] if length in row.results else ()
            return share_found(case for case in cases if nearest_depth(case["depth"], n_depths) == y).number

        depths = heat_maps(
            [row for row in rows if row.results],
            [int(point) for point in evaluation.points],
            [f"{y / max(1, n_depths - 1):.0%}" for y in range(n_depths)],
            at_depth,
            n=n_cases / n_depths,
            name=f"{self.NAME}-depth",
            title=f"{self.ITEMS.capitalize()} found by length and depth",
            y_label=f"depth of the {self.ITEM}",
            note=f"A {self.ITEM} counts to the nearest row.",
        )
        return document(
            evaluation,
            title,
            summary=best_at_the_longest(
                rows,
                found,
                "In prompts of {} tokens",
                "finds most",
                f"share of the {self.ITEMS} found",
                POINTS,
                "prompts",
            ),
            sections={
                "Found by length": [self.curve(evaluation), found, *tables],
                f"Where the {self.ITEM} stands": [depths],
                f"How far away the {self.ITEM} is": [*distances, self.by_distance(rows)],
            },
            after={"Definition": [definition]},
            facts=[("cases", f"{n_cases} at each length"), *facts],
            verdicts=verdicts(evaluation, self.reach_parts(evaluation)),
        )

    def curve(
        self,
        evaluation: Evaluation[Found],
        name: str = "by-length",
        where: str = "",
        ends: tuple[float, float] = (-math.inf, math.inf),
        note: str = "",
    ) -> Lines | None:
        """Draw the share found by length, of the cases at these distances [training windows]."""
        lines = (
            Line.of_values(row.label, ((int(n), share_at(row, [result], ends)) for n, result in row.results.items()))
            for row in evaluation.rows()
        )
        title, y_label = f"{self.ITEMS.capitalize()} found by length{where}", f"share of {self.ITEMS} found"
        return share_curves(evaluation, lines, name=f"{self.NAME}-{name}", title=title, y_label=y_label, note=note)

    def by_distance(self, rows: Sequence[GridRow[Found]]) -> Table | None:
        """Show the share found in ranges of the distance, cases of all lengths together."""
        return table(
            rows,
            {words: lambda row, ends=ends: share_at(row, row.results.values(), ends) for words, ends in RANGES.items()},
            best="high",
            name=f"{self.NAME}-by-distance",
            title=f"Share of {self.ITEMS} found by distance of the {self.ITEM}",
            note="Cases of all lengths together; windows are the model's training window.",
        )


def share_found(cases: Iterable[FoundCase]) -> Value:
    """Return the share of these cases of a result that were found; nothing when there are none."""
    known = list(cases)
    hits = [case["found"] for case in known]
    if not hits:
        return Value.of(None, missing="no such case")
    low, high = wilson(sum(hits), len(hits))
    # A digest of what was asked, whatever was answered.
    asked = [{key: value for key, value in case.items() if key not in ("found", "answer")} for case in known]
    units = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    note, sample = f"{sum(hits)} of {len(hits)}", Sample.of_shares(hits, units)
    return Value.of(sum(hits) / len(hits), note=note, low=low, high=high, n=len(hits), sample=sample)


def share_at(row: GridRow[Found], results: Iterable[Found], ends: tuple[float, float]) -> Value:
    """Return the share found of the cases at distances from the first of these ends to below the second [training
    windows of the model]."""
    window, (first, end) = row.subject.training_window, ends
    cases = (case for result in results for case in result["cases"])
    return share_found(case for case in cases if first <= case["distance"] / window < end)


def nearest_depth(depth: float, n_depths: int) -> int:
    """Return which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)
