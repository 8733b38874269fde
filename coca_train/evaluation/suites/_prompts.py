"""Suites that ask a model with prompts made for a length: how prompts are fitted, asked, counted and shown.

Length. A prompt is built around a number of units (sentences, pairs, shots). At length L [tokens] it gets a size at
which it has at most L tokens, and either at least 99 % of them, or more than L with one unit more. When the smallest
prompt is longer than L, there is none.

Draws. A case's draws come from a generator seeded by (suite, seed, L, number of the case), the same at every size
tried; so neither the number of cases nor another tokenizer changes what is drawn.
"""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import by_point, document, heat_maps, share_by_length, table
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.evaluation.verdict import FOUND_SHARE, Name, Part, PartsByRow, finds, unmeasured, verdicts
from coca_train.models.continuations import continuations
from coca_train.report.blocks import Block, Document, Line, Lines, Table, Value
from coca_train.report.headlines import POINTS, headline
from coca_train.runtime import dist
from coca_train.statistics.pairs import Sample
from coca_train.statistics.shares import wilson

PROBE = 32  # units more than the smallest prompt, to see what a unit costs
FULL = 0.99  # share of a length that a prompt must fill
RANGES = {  # of distance, in training windows of the model: from, below
    "within the window": (0, 1),
    "1 to 4 windows": (1, 4),
    "4 to 16 windows": (4, 16),
    "16 windows and more": (16, float("inf")),
}

Encode = Callable[[str], list[int]]
Places = Literal["uniform", "even"]
Case = Mapping[str, Any]  # of a result: found, and most with depth and distance


class Prompt(Protocol):
    """A prompt as one model reads it."""

    @property
    def tokens(self) -> Sequence[int]: ...


T = TypeVar("T", bound=Prompt)
Settings = TypeVar("Settings")


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


class PromptSuite(CellSuite[Settings, Mapping[Point, Sequence[T]]]):
    """Asks prompts for greedy answers. AXIS of such suites has found_share. PART: what it says of a model's reach."""

    PART: ClassVar[Name] = "finds"

    @abstractmethod
    def no_room(self, subject: Subject, point: Any) -> str:
        """Say that a point has no room for a prompt."""

    @abstractmethod
    def expected(self, case: T) -> Sequence[str]:
        """Return what an answer must contain."""

    @abstractmethod
    def max_new_tokens(self, point: Point, cases: Sequence[T]) -> int:
        """Return the length of an answer [tokens]."""

    def prompt_length(self, point: Any) -> int:
        """Return the limit of the prompts [tokens]: dynamic frequencies see it and the new tokens, however long one
        prompt is."""
        return point

    def work(self, subject: Subject, points: Sequence[Any], material: Mapping[Point, Sequence[T]]) -> list[float]:
        """Estimate the work [tokens]."""
        new = {point: self.max_new_tokens(point, material[point]) for point in points}
        return [float(sum(len(case.tokens) + new[point] for case in material[point])) for point in points]

    def fingerprint(self, material: Mapping[Point, Sequence[T]], point: Any) -> str:
        whole = hashlib.sha256()
        for case in material[point]:
            whole.update(f"{list(case.tokens)} {list(self.expected(case))}\n".encode())
        return whole.hexdigest()

    def impossible(self, subject: Subject, point: Any, material: Mapping[Point, Sequence[T]]) -> str:
        if not material[point]:
            return self.no_room(subject, point)
        needed = max(len(case.tokens) for case in material[point]) + self.max_new_tokens(point, material[point])
        problem = missing_positions(subject.model, needed)
        return problem and f"{problem}, and prompt and answer need {needed:,}"

    def measure(
        self, subject: Subject, point: Any, material: Mapping[Point, Sequence[T]], setup: Setup
    ) -> list[tuple[int, str]]:
        """Return the index and the answer of this rank's prompts."""
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
        # By index: which rank answers which prompt depends on their number, and the order must not.
        return [(index, subject.tokenizer.decode(tokens)) for index, tokens in sorted(new_tokens.items())]

    @abstractmethod
    def hits(self, evaluation: Evaluation, row: GridRow) -> tuple[dict[int, list[bool]], str]:
        """Return by length, whether each prompt was answered as it must be; and why no longer ones were asked."""

    def reach_parts(self, evaluation: Evaluation) -> PartsByRow:
        least, parts = evaluation.settings.get("found_share", FOUND_SHARE), {}
        for row in evaluation.rows():
            hits, stopped = self.hits(evaluation, row)
            evidence = tuple(finds(n, sum(found), len(found), least) for n, found in hits.items())
            part = Part(self.PART, "prompts", evidence, stopped=stopped, bound=least)
            parts[row.name] = [part if evidence else unmeasured(part, row.cells.values())]
        return parts


def gather_answers(parts: Iterable[Iterable[Sequence[Any]]]) -> list[str]:
    """Return all ranks' answers in the order of the prompts."""
    return [text for _, text in sorted(tuple(pair) for part in parts for pair in part)]


class FoundSuite(PromptSuite[Settings, T]):
    """Counts the cases whose hidden item was found. NAME: of its blocks. ITEM, ITEMS: what is hidden, in words."""

    NAME: ClassVar[str]
    ITEM: ClassVar[str]
    ITEMS: ClassVar[str]

    @abstractmethod
    def prompts(self, subject: Subject, point: Any, setup: Setup) -> list[T]:
        """Make the prompts of a point; none when it has no room."""

    def prepare(self, subject: Subject, setup: Setup) -> dict[Point, list[T]]:
        return {point: self.prompts(subject, point, setup) for point in setup.points}

    def hits(self, evaluation: Evaluation, row: GridRow) -> tuple[dict[int, list[bool]], str]:
        hits = {int(point): [case["found"] for case in result["cases"]] for point, result in row.results.items()}
        return hits, row.absence_beyond(max(hits, default=0))

    def found_page(
        self,
        evaluation: Evaluation,
        title: str,
        n_depths: int,
        *,
        definition: str,
        facts: Sequence[tuple[str, str]] = (),
        depth_notes: Sequence[str] = (),
        tables: Iterable[Block | None] = (),
        distances: Iterable[Block | None] = (),
        **fields: Any,
    ) -> Document:
        """Show what was found by length, depth and distance. tables, distances: other blocks about lengths and about
        distances. fields: other ones of the table by length."""
        rows = evaluation.rows()
        found = table(
            rows,
            by_point(evaluation.points, lambda result: share_found(result["cases"])),
            name=f"{self.NAME}-found",
            title=f"Share of {self.ITEMS} found by length of the prompt [tokens]",
            best="high",
            **fields,
        )

        def at_depth(row: GridRow, length: int, y: int) -> float | None:
            cases = row.results.get(length, {}).get("cases", ())
            return share_found(case for case in cases if nearest_depth(case["depth"], n_depths) == y).number

        depths = heat_maps(
            [row for row in rows if row.results],
            [int(point) for point in evaluation.points],
            [f"{y / max(1, n_depths - 1):.0%}" for y in range(n_depths)],
            at_depth,
            name=f"{self.NAME}-depth",
            title=f"{self.ITEMS.capitalize()} found by length and depth",
            y_label=f"depth of the {self.ITEM}",
            note=" ".join(
                [f"A {self.ITEM} counts to the nearest row. The line marks the training window.", *depth_notes]
            ),
        )
        by_ranges = by_distance(
            evaluation,
            name=f"{self.NAME}-by-distance",
            title=f"Share of {self.ITEMS} found by distance of the {self.ITEM}",
            note="Cases of all lengths together; windows are the model's training window.",
        )
        return document(
            evaluation,
            title,
            summary=best_at_the_longest(rows, found, "finds most", f"share of the {self.ITEMS} found"),
            sections={
                "Found by length": [self.by_length(evaluation), found, *tables],
                f"Where the {self.ITEM} stands": [depths],
                f"How far away the {self.ITEM} is": [*distances, by_ranges],
            },
            after={"Definition": [definition]},
            facts=[("cases", f"{evaluation.settings['n_cases']} at each length"), *facts],
            verdicts=verdicts(evaluation, self.reach_parts(evaluation)),
        )

    def by_length(
        self, evaluation: Evaluation, name: str = "by-length", title: str = "", **fields: Any
    ) -> Lines | None:
        """Draw the share found by length. fields: of `by_length`, and other ones of Lines."""
        title = title or f"{self.ITEMS.capitalize()} found by length"
        return by_length(
            evaluation,
            name=f"{self.NAME}-{name}",
            title=title,
            y_label=f"share of {self.ITEMS} found",
            **fields,
        )


def summarise_cases(cases: Sequence[Case]) -> dict[str, Any]:
    """Return what a cell says of all its cases: the share found (`accuracy`), its 95 % interval, their number, and the
    cases."""
    hits = [case["found"] for case in cases]
    low, high = wilson(sum(hits), len(hits))
    return {"accuracy": sum(hits) / len(hits), "low": low, "high": high, "n_cases": len(hits), "cases": list(cases)}


def share_found(cases: Iterable[Case]) -> Value:
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


def by_length(
    evaluation: Evaluation, first: float = 0, end: float = math.inf, more: Iterable[Line] = (), **fields: Any
) -> Lines | None:
    """Draw the share found by length, of the cases at these distances [training windows]. more: other curves. fields:
    other ones of Lines."""

    def line(row: GridRow) -> Line:
        shares = ((int(n), share_found(in_range(row, result, first, end))) for n, result in row.results.items())
        return Line.through(row.label, ((n, share.number, share.low, share.high) for n, share in shares))

    return share_by_length(evaluation, [*map(line, evaluation.rows()), *more], **fields)


def by_distance(evaluation: Evaluation, **fields: Any) -> Table | None:
    """Return the share found in ranges of the distance, cases of all lengths together. fields: other ones of Table."""

    def column(first: float, end: float) -> Callable[[GridRow], Value]:
        return lambda row: share_found(
            case for result in row.results.values() for case in in_range(row, result, first, end)
        )

    return table(evaluation.rows(), {words: column(*ends) for words, ends in RANGES.items()}, best="high", **fields)


def in_range(row: GridRow, result: Mapping[str, Any], first: float, end: float) -> list[Case]:
    """Return the cases of a result at distances from `first` to below `end` [training windows of the model]; all, where
    these are no bounds."""
    if (first, end) == (0, math.inf):
        return list(result["cases"])
    window = row.subject.training_window
    return [
        case for case in result["cases"] if case["distance"] is not None and first <= case["distance"] / window < end
    ]


def nearest_depth(depth: float, n_depths: int) -> int:
    """Return which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)


def best_at_the_longest(
    rows: Sequence[GridRow], shares: Table | None, does: str, quantity: str, none: Sequence[str] = ()
) -> list[str]:
    """Say which model and variant is best in the longest prompts that have a figure, if any surely is.

    shares: a row a model and variant. does: what a winner does. none: what is said where no length has a figure.
    """
    if shares is None:
        return []
    ours = shares.rows[: len(rows)]
    known = [i for i in range(len(shares.columns)) if any(row.values[i].number is not None for row in ours)]
    if not known:
        return list(none)
    where = f"In prompts of {shares.columns[known[-1]]} tokens"
    return [headline(shares, known[-1], [row.label for row in rows], where, does, quantity, POINTS, "prompts")]
