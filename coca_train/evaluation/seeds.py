"""Models that were trained with several seeds: who they are, and one row for each.

A seed is a training of its own: other initial weights, other dropout, another order of the data, and nothing else.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from itertools import product, takewhile
from typing import Any

import numpy as np

from coca_train.evaluation.measures.perplexity import summarise, weighted
from coca_train.evaluation.results import Cell, Evaluation, Measured

Result = Mapping[str, Any]
NUMBER = re.compile(r"[-_.]?(seed)?[-_.]?[0-9]*$")  # what is left of a run's name in front of where seeds differ
SEED = re.compile(r"[-_.]?seed[-_.]?[0-9]+$")


def without_seeds(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """(what else a run was trained with, its seed): of its whole configuration, as plain values."""
    run, data = settings.get("run", {}), settings.get("data", {})
    rest = {**settings, "data": {**data, "seed": None}}
    rest.pop("run", None)  # its name and place
    weights, order = run.get("seed"), data.get("seed")
    return rest, f"{weights}" if order in (weights, None) else f"{weights}, data {order}"


def grouped(settings: Mapping[str, Mapping[str, Any]], others: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """By model, its runs and their seeds: runs that differ in nothing else are one model. settings: by run.
    others: names that are taken, of what is no run.

    Runs that have one and the same seed too stay apart: a training repeated says nothing of seeds.
    """
    alike: list[tuple[dict[str, Any], dict[str, str]]] = []
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
    """rope, rope-seed2 -> rope; t5-1, t5-2 -> t5"""
    if len(runs) == 1:
        return runs[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*runs, strict=False))
    common = "".join(letters[0] for letters in alike)
    # Where a run is called so, digits at its end are its name's own: t5, rope-yarn-factor-8.
    return (SEED if common in runs else NUMBER).sub("", common)


def several(evaluation: Evaluation) -> int:
    """How many seeds the model with the most of them has; 0 where none has more than one."""
    most = max((len(seeds) for seeds in evaluation.seeds.values()), default=0)
    return most if most > 1 else 0


def model_of(evaluation: Evaluation) -> dict[str, str]:
    """By subject, the model that it is a seed of: itself, where nothing is known of that."""
    known = {subject: model for model, seeds in evaluation.seeds.items() for subject in seeds}
    return {subject.name: known.get(subject.name, subject.name) for subject in evaluation.subjects}


def apart(evaluation: Evaluation) -> Evaluation:
    """Every training a model of its own."""
    return replace(evaluation, seeds={})


def pooled(evaluation: Evaluation) -> Evaluation:
    """One subject a model, in the order of their first seeds. A cell that a seed has no result of has none.

    evaluation: of suite perplexity, where a model has several seeds.
    """
    known, models = model_of(evaluation), dict[str, list[Measured]]()
    for subject in evaluation.subjects:
        models.setdefault(known[subject.name], []).append(subject)
    subjects, cells = [], list[Cell]()
    places = {(cell.subject, cell.variant, cell.point): cell for cell in evaluation.cells}
    for model, seeds in models.items():
        subjects.append(replace(seeds[0], name=model))
        for variant, point in product(seeds[0].variants, evaluation.points):
            names = evaluation.seeds.get(model, {})
            asked = {
                names.get(seed.name, seed.name if seeds[1:] else ""): places[place]
                for seed in seeds
                if (place := (seed.name, variant, point)) in places
            }
            cells += [replace(_cell(asked), subject=model)] if asked else []
    return replace(evaluation, subjects=tuple(subjects), cells=tuple(cells))


def _cell(asked: Mapping[str, Cell]) -> Cell:
    """asked: by seed."""
    first = next(iter(asked.values()))
    if without := [cell for cell in asked.values() if cell.status != "done"]:
        return without[0]
    return replace(first, result=_pool({seed: cell.result for seed, cell in asked.items()}))


def _pool(seeds: Mapping[str, Result]) -> dict[str, Any]:
    """Of a cell's results, one of each seed: every figure of the mean loss over them, and what each seed has of every
    text (`seeds`), of one seed too."""
    texts = [result["sources"] for result in seeds.values()]
    common = [source for source in texts[0] if all(source in text for text in texts)]
    (stride,) = {result["stride"] for result in seeds.values()}
    each = {source: {seed: result["sources"][source] for seed, result in seeds.items()} for source in common}
    return {"stride": stride, "sources": {source: _pool_text(results) for source, results in each.items()}}


def _pool_text(seeds: Mapping[str, Result]) -> dict[str, Any]:
    if len(seeds) == 1:
        ((seed, alone),) = seeds.items()
        return {**alone, "seeds": {seed: alone}}
    sums_SD2 = np.array([result["by_document"] for result in seeds.values()], dtype=float)
    first = next(iter(seeds.values()))
    summary = summarise(sums_SD2.mean(0), first["n_bytes"])
    if "windows_by_document" in first:
        windows_SD2 = np.array([result["windows_by_document"] for result in seeds.values()], dtype=float)
        summary = weighted(summary, windows_SD2.mean(0))
    return {
        **asdict(summary),
        "ends": first["ends"],
        "loss_by_position": np.mean([result["loss_by_position"] for result in seeds.values()], axis=0).tolist(),
        "predictions": first["predictions"],
        "seeds": dict(seeds),
    }
