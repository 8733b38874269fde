"""The outcome of an evaluation: one record a cell of its grid, who was measured, and what a page calls them.

Legends and sentences call a model by its position scheme, as papers do, with what was exchanged: "RoPE", "CoCA +
dynamic NTK (α 4)". Where two models have one scheme, they are called by their runs.

Seeds. A seed is a training of its own: other initial weights, other dropout, another order of the data, and nothing
else. `group_seeds` finds the seeds of one model, `pool_seeds` makes one row of them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product, takewhile
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from coca_train.evaluation.measures.perplexity import ByText, OneText, summarise, weigh_windows
from coca_train.runtime.durable import sealed, unsealed
from coca_train.runtime.untrusted_io import JsonObject

Point = int | str  # a length [tokens], or the name of what a suite measures at this place of the grid
Status = Literal["done", "out_of_memory", "impossible"]
Result = TypeVar("Result", bound=Mapping[str, object])  # of a cell: a TypedDict of its suite, plain JSON
Other = TypeVar("Other", bound=Mapping[str, object])

RESULTS = "results.json"  # an Evaluation, next to its report
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
    tokenizer: str = ""  # its digest, "" where unknown


def same_tokens(subjects: Iterable[Measured]) -> bool:
    """Return whether all of them have one tokenizer, as far as is known: only then can losses per token be compared."""
    return len({subject.tokenizer for subject in subjects} - {""}) < 2


@dataclass(frozen=True, kw_only=True)
class Cell(Generic[Result]):
    """One cell. result: what the suite's `combine` made, plain JSON; None unless status is done.

    reason: why there is no result. seconds: of measuring it, when it was measured. suite: whose it is, where an
    evaluation asks several.
    """

    subject: str
    variant: str
    point: Point
    status: Status
    result: Result | None = None
    reason: str = ""
    seconds: float = 0.0
    suite: str = ""

    @property
    def absence(self) -> str:
        """Why it has no result; "" when it has one."""
        return {"done": "", "out_of_memory": "out of memory", "impossible": self.reason}[self.status]


AnyCell: TypeAlias = Cell[Any]


class GridRow(NamedTuple, Generic[Result]):
    """One model under one variant. label: what legends and sentences call it.

    cells: by point, in the order of the points, whatever became of them.
    """

    subject: Measured
    variant: str
    label: str
    cells: Mapping[Point, Cell[Result]]

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
    def results(self) -> dict[Point, Result]:
        """Of the cells that have one, in the order of the points."""
        return {point: cell.result for point, cell in self.cells.items() if cell.result}

    @property
    def last(self) -> Result | None:
        """The result at the last point that has one, the longest where points are lengths; None without any."""
        return next(reversed(self.results.values()), None)

    def absence_beyond(self, length: int) -> str:
        """Say why the first length that was asked beyond this one [tokens] has no result; "" when it has one, or
        nothing was asked. Points are lengths."""
        return next((cell.absence for point, cell in self.cells.items() if int(point) > length), "")


def as_trained(rows: Sequence[GridRow[Result]]) -> list[GridRow[Result]]:
    """Return every model under its first variant: what it was trained with, unless the grid leaves that out."""
    return [row for row in rows if row.variant == row.subject.variants[0]]


AnyRow: TypeAlias = GridRow[Any]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Generic[Result]):
    """All of it. settings: of the suite. facts: what was run, label and value. command: how to run it again.

    seeds: by model, its subjects and the seed that each was trained with, where that is known.
    """

    suite: str
    name: str
    settings: JsonObject
    subjects: Sequence[Measured]
    points: Sequence[Point]
    cells: Sequence[Cell[Result]]
    facts: Sequence[tuple[str, str]]
    command: str
    seeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def find(self, subject: str, variant: str, point: Point) -> Cell[Result] | None:
        """Return the cell, whatever became of it; None when it is not of this grid."""
        return self._by_place().get((subject, variant, point))

    def rows(self) -> list[GridRow[Result]]:
        """Return every model under every variant that could be measured somewhere, in order."""
        by_place = self._by_place()
        # A variant that is impossible everywhere would be a row of dashes; "Not measured" has its reason.
        tried = {(cell.subject, cell.variant) for cell in self.cells if cell.status != "impossible"}
        rows, names = [], model_names({subject.name: subject.scheme for subject in self.subjects})
        for subject in self.subjects:
            for variant in subject.variants:
                if (subject.name, variant) in tried:
                    label = with_variant(names[subject.name], variant)
                    places = {point: (subject.name, variant, point) for point in self.points}
                    cells = {point: by_place[place] for point, place in places.items() if place in by_place}
                    rows.append(GridRow(subject, variant, label, cells))
        return rows

    def _by_place(self) -> dict[tuple[str, str, Point], Cell[Result]]:
        return {(cell.subject, cell.variant, cell.point): cell for cell in self.cells}

    def reduced(self, part: "Callable[[Result], Other | None]") -> "Evaluation[Other]":
        """Return the same with only a part of every result: one text of several, say. None shows nothing."""
        cells = [Cell(**{**vars(cell), "result": cell.result and part(cell.result)}) for cell in self.cells]
        return Evaluation(**{**vars(self), "cells": tuple(cells)})

    def of_suite(self, suite: str, settings: JsonObject) -> "Evaluation[Any]":
        """Return what one of several suites measured. settings: its own."""
        cells = tuple(cell for cell in self.cells if cell.suite == suite)
        points = tuple(dict.fromkeys(cell.point for cell in cells))
        return replace(self, suite=suite, settings=settings, points=points, cells=cells)

    def absences(self) -> list[str]:
        """Return cells without a result and why, a sentence each; equal reasons of one row together."""
        points: dict[tuple[str, str, str], list[Point]] = {}
        for cell in self.cells:
            if cell.status != "done":
                points.setdefault((cell.subject, cell.variant, cell.absence), []).append(cell.point)
        return [
            f"{subject}, {variant}{'' if len(at) == len(self.points) else ' at ' + ', '.join(map(str, at))}: {reason}"
            for (subject, variant, reason), at in points.items()
        ]

    def to_json(self) -> JsonObject:
        return sealed(asdict(self))

    @classmethod
    def from_json(cls, data: JsonObject) -> "Evaluation[Any]":
        """Read what `to_json` made. Raises KeyError, TypeError or ValueError when `data` did not come from
        `to_json`."""
        data = unsealed(data)
        subjects = tuple(Measured(**{**s, "variants": tuple(s["variants"])}) for s in data["subjects"])
        cells = tuple(Cell(**cell) for cell in data["cells"])
        facts = tuple((label, value) for label, value in data["facts"])
        known = {"subjects": subjects, "cells": cells, "facts": facts, "points": tuple(data["points"])}
        return cls(**{**data, **known})


SCHEMES = {
    "alibi": "ALiBi", "coca": "CoCA", "cope": "CoPE", "dape": "DAPE", "disentangled": "DeBERTa", "fire": "FIRE",
    "fope": "FoPE", "fox": "FoX", "grape_a": "GRAPE-A", "grape_ap": "GRAPE-AP", "grape_m": "GRAPE-M",
    "kerple_log": "KERPLE-log", "kerple_power": "KERPLE-power", "learned": "learned positions",
    "linear_rope": "linear RoPE", "nope": "NoPE", "path": "PaTH", "pope": "PoPE", "rope": "RoPE",
    "sandwich": "Sandwich", "selective_rope": "Selective RoPE", "shaw": "Shaw", "sinusoidal": "sinusoidal",
    "stick_breaking": "stick-breaking", "t5": "T5 bias", "transformer_xl": "Transformer-XL", "tupe": "TUPE",
    "xpos": "xPos",
}  # fmt: skip
ROPE_SCALINGS = {
    "clex": "CLEX", "clipped": "clipped RoPE", "dynamic_linear": "dynamic PI", "dynamic_ntk": "dynamic NTK",
    "dynamic_ntk_by_parts": "dynamic NTK-by-parts", "dynamic_yarn": "dynamic YaRN",
    "dynamic_yarn_tuned": "dynamic YaRN (tuned)", "hope": "HoPE", "learned": "learned frequencies", "linear": "PI",
    "llama3": "Llama 3 scaling", "longrope": "LongRoPE", "ntk": "NTK-aware", "ntk_by_parts": "NTK-by-parts",
    "resonance": "Resonance", "yarn": "YaRN",
}  # fmt: skip
GREEK = {"alpha": "α", "beta": "β", "theta": "θ"}
PLAIN = "plain"


def model_names(schemes: Mapping[str, str]) -> dict[str, str]:
    """Return by model what legends and sentences call it. schemes: by model, its position scheme."""
    known = list(schemes.values())
    return {
        model: SCHEMES.get(scheme, scheme) if known.count(scheme) == 1 else model for model, scheme in schemes.items()
    }


def with_variant(name: str, variant: str) -> str:
    """Return the name of a model under a variant, which evaluation/variants.py labels."""
    return " + ".join([name, *(_spoken(part) for part in _parts(variant) if part != PLAIN)])


def _parts(variant: str) -> list[str]:
    """Return what is joined by commas outside brackets."""
    return re.split(r", (?![^(]*\))", variant)


def _spoken(part: str) -> str:
    """Write `dynamic_ntk (alpha 4)` as "dynamic NTK (α 4)"."""
    name, bracket, options = part.partition(" (")
    for word, sign in GREEK.items():
        options = re.sub(rf"\b{word}\b", sign, options)
    return f"{ROPE_SCALINGS.get(name, name.replace('_', ' '))}{bracket}{options.replace('_', ' ')}"


NUMBER = re.compile(r"[-_.]?(seed)?[-_.]?[0-9]*$")  # what is left of a run's name in front of where seeds differ
SEED = re.compile(r"[-_.]?seed[-_.]?[0-9]+$")


def without_seeds(settings: JsonObject) -> tuple[JsonObject, str]:
    """Return (what else a run was trained with, its seed): of its whole configuration, as plain values."""
    run, data = settings.get("run", {}), settings.get("data", {})
    rest = {**settings, "data": {**data, "seed": None}}
    rest.pop("run", None)  # its name and place
    weights, order = run.get("seed"), data.get("seed")
    return rest, f"{weights}" if order in (weights, None) else f"{weights}, data {order}"


def group_seeds(settings: Mapping[str, JsonObject], others: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Return by model, its runs and their seeds: runs that differ in nothing else are one model. settings: by run.
    others: names that are taken, of what is no run.

    Runs that have one and the same seed too stay apart: a training repeated says nothing of seeds.
    """
    alike: list[tuple[JsonObject, dict[str, str]]] = []
    for name, whole in settings.items():
        rest, seed = without_seeds(whole)
        for other, seeds in alike:
            if other == rest and seed not in seeds.values():
                seeds[name] = seed
                break
        else:
            alike.append((rest, {name: seed}))
    names = [_common(list(seeds)) for _, seeds in alike]

    def taken(name: str, seeds: Mapping[str, str]) -> bool:
        return names.count(name) > 1 or name in others or (name in settings and name not in seeds)

    return {
        name if name and not taken(name, seeds) else next(iter(seeds)): seeds
        for name, (_, seeds) in zip(names, alike, strict=True)
    }


def _common(runs: list[str]) -> str:
    """Return what names have in common: rope, rope-seed2 -> rope; t5-1, t5-2 -> t5"""
    if len(runs) == 1:
        return runs[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*runs, strict=False))
    common = "".join(letters[0] for letters in alike)
    # Where a run is called so, digits at its end are its name's own: t5, rope-yarn-factor-8.
    return (SEED if common in runs else NUMBER).sub("", common)


def most_seeds(evaluation: Evaluation[Result]) -> int:
    """Return how many seeds the model with the most of them has; 0 where none has more than one."""
    most = max((len(seeds) for seeds in evaluation.seeds.values()), default=0)
    return most if most > 1 else 0


def model_of(evaluation: Evaluation[Result]) -> dict[str, str]:
    """Return by subject, the model that it is a seed of: itself, where nothing is known of that."""
    known = {subject: model for model, seeds in evaluation.seeds.items() for subject in seeds}
    return {subject.name: known.get(subject.name, subject.name) for subject in evaluation.subjects}


def pool_seeds(evaluation: Evaluation[ByText]) -> Evaluation[ByText]:
    """Make one subject of a model, in the order of their first seeds. A cell that a seed has no result of has none."""
    known, models = model_of(evaluation), dict[str, list[Measured]]()
    for subject in evaluation.subjects:
        models.setdefault(known[subject.name], []).append(subject)
    subjects, cells = [], list[Cell[ByText]]()
    for model, seeds in models.items():
        subjects.append(replace(seeds[0], name=model))
        names = evaluation.seeds.get(model, {})
        for variant, point in product(seeds[0].variants, evaluation.points):
            by_seed = {
                names.get(seed.name, seed.name if seeds[1:] else ""): cell
                for seed in seeds
                if (cell := evaluation.find(seed.name, variant, point))
            }
            results = {seed: cell.result for seed, cell in by_seed.items() if cell.result is not None}
            shown = next(
                (cell for cell in by_seed.values() if cell.status != "done"), next(iter(by_seed.values()), None)
            )
            if shown is not None:
                pooled = None if shown.status != "done" else _pool(results)
                cells.append(replace(shown, subject=model, result=pooled))
    return replace(evaluation, subjects=tuple(subjects), cells=tuple(cells))


def _pool(seeds: Mapping[str, ByText]) -> ByText:
    """Pool a cell's results by seed, text by text."""
    texts = [result["sources"] for result in seeds.values()]
    common = [source for source in texts[0] if all(source in text for text in texts)]
    (stride,) = {result["stride"] for result in seeds.values()}
    each = {source: {seed: result["sources"][source] for seed, result in seeds.items()} for source in common}
    return {"stride": stride, "sources": {source: _pool_text(results) for source, results in each.items()}}


def _pool_text(seeds: Mapping[str, OneText]) -> OneText:
    """Return every figure of the mean loss over seeds, and what each of them has (`seeds`), of one seed too."""
    first = next(iter(seeds.values()))
    if len(seeds) == 1:
        return {**first, "seeds": dict(seeds)}
    sums_D2 = np.mean([result["by_document"] for result in seeds.values()], 0)
    summary = summarise(sums_D2, first["n_bytes"])
    if "windows_by_document" in first:
        windows_SD2 = [result["windows_by_document"] for result in seeds.values() if "windows_by_document" in result]
        summary = weigh_windows(summary, np.mean(windows_SD2, 0))
    return {
        **summary,
        "by_document": sums_D2.tolist(),
        "ends": first["ends"],
        "loss_by_position": np.mean([result["loss_by_position"] for result in seeds.values()], axis=0).tolist(),
        "predictions": first["predictions"],
        "seeds": dict(seeds),
    }
