"""The grid: every model under every variant at every point, one cell after the other.

Models are opened one at a time. Ranks share each cell; what a rank makes of its share is gathered before anything is
concluded, so that a rank that ran out of memory leaves no other waiting.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any

import torch

from coca_train import dist
from coca_train.config.load import Variant
from coca_train.engine.process import ran_out
from coca_train.evals.extrapolation import put
from coca_train.evals.results import Cell, Measured, Point
from coca_train.evaluation.progress import Progress
from coca_train.evaluation.schema import EvaluateConfig
from coca_train.evaluation.store import Store
from coca_train.evaluation.subject import Around, Subject
from coca_train.evaluation.subjects import open_subject
from coca_train.evaluation.suites import suite_module
from coca_train.evaluation.variants import described


def run_grid(
    config: EvaluateConfig, names: Sequence[str], points: tuple[Point, ...], around: Around, store: Store
) -> tuple[list[Measured], list[Cell]]:
    """Measure, or find among what was measured, every cell. COLLECTIVE. names: of the checkpoints."""
    suite, subjects, cells = suite_module(config.eval.suite), [], []
    progress: Progress | None = None
    try:
        for number, (path, name) in enumerate(zip(config.grid.checkpoints, names, strict=True)):
            subject = open_subject(
                path, name, config.grid.frequencies, config.grid.visibilities, config.work.device, config.work.dtype
            )
            material = suite.prepare(config.eval, subject, around)
            work = {point: suite.work(config.eval, point, material) for point in points}
            if progress is None:  # the others are taken to be as much work as the first
                total = sum(work.values()) * len(subject.variants) * (len(names) - number)
                progress = Progress(total, config.work.progress_bar)
            for label, variant in subject.variants.items():
                row = []
                for point in reversed(points):  # the longest first: what others may be cut from, and memory's worst
                    progress.cell(f"{name}, {label}, {point}", work[point])
                    told = replace(around, progress=progress.share)
                    place = Place(suite, config.eval, subject, label, variant, point)
                    row.append(_cell(place, material, told, store))
                cells += reversed(row)
            subjects.append(subject.facts)
            del subject, material
            _free()
    finally:
        if progress is not None:
            progress.close()
    return subjects, cells


class Place:
    """Where in the grid a cell is."""

    def __init__(
        self, suite: ModuleType, settings: Any, subject: Subject, label: str, variant: Variant, point: Point
    ) -> None:
        self.suite, self.settings, self.subject = suite, settings, subject
        self.label, self.variant, self.point = label, variant, point

    def content(self, material: Any, around: Around) -> dict[str, Any]:
        """Everything the result depends on, as plain JSON."""
        return {
            "suite": self.settings.suite,
            "version": self.suite.VERSION,
            "settings": {k: v for k, v in asdict(self.settings).items() if k not in self.suite.AXIS},
            "weights": self.subject.facts.weights,
            "training_window": self.subject.training_window,
            "variant": described(self.variant),
            "point": self.point,
            "material": self.suite.fingerprint(material, self.point),
            "seed": around.seed,
            "dtype": str(next(self.subject.model.parameters()).dtype),
        }

    def record(self, **what: Any) -> Cell:
        return Cell(subject=self.subject.name, variant=self.label, point=self.point, **what)


def _cell(place: Place, material: Any, around: Around, store: Store) -> Cell:
    if place.variant.problem:
        return place.record(status="impossible", reason=place.variant.problem)
    put(place.subject.model, place.variant)
    reason = place.suite.impossible(place.settings, place.subject, place.point, material)
    if reason:
        return place.record(status="impossible", reason=reason)
    content, kept = place.content(material, around), place.suite.CACHED
    known = dist.on_main(lambda: store.get(content) if kept else None)
    if known is not None:
        return place.record(status="done", result=known["result"], seconds=known["seconds"])
    began = time.perf_counter()
    parts, reason = _measure(place, material, around)
    if reason:
        return place.record(status="out_of_memory", reason=reason)
    result = place.suite.combine(place.settings, place.point, material, parts)
    seconds = time.perf_counter() - began
    dist.on_main(lambda: store.put(content, result, seconds) if kept else None)
    return place.record(status="done", result=result, seconds=seconds)


def _measure(place: Place, material: Any, around: Around) -> tuple[list[Any], str]:
    """Every rank's part; or why there is none: memory that ran out on any of them."""
    part, reason = None, ""
    try:
        part = place.suite.measure(place.settings, place.subject, place.point, material, around)
    except Exception as error:
        if not ran_out(error):
            raise
        reason = f"out of memory on rank {dist.rank()}: {(str(error) or 'host memory').splitlines()[0][:200]}"
    if reason:
        _free()
    gathered = dist.all_gather_object((part, reason))
    return [part for part, _ in gathered], next((reason for _, reason in gathered if reason), "")


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
