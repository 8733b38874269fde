"""The grid: every model under every variant at every point, one cell after the other.

Models are opened one at a time, or are in hand: a training's own. Ranks share each cell. What a rank makes of its share
is gathered before anything is concluded, so that a rank that runs out of memory leaves no other waiting.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import torch

from coca_train.engine.process import join_sequence_group, ran_out
from coca_train.evaluation.configuration import EvaluateConfig
from coca_train.evaluation.progress import Progress
from coca_train.evaluation.results import Cell, Measured, Point
from coca_train.evaluation.store import Store
from coca_train.evaluation.subject import Setup, Subject, open_folder, subject_of
from coca_train.evaluation.suites import suite_module
from coca_train.evaluation.variants import Variant, described
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError

T = TypeVar("T")


def run_grid(
    config: EvaluateConfig, names: Sequence[str], lengths: Sequence[int], setup: Setup, store: Store
) -> tuple[list[Measured], list[Cell]]:
    """Measure, or find among what was measured, every cell. COLLECTIVE. names: of the checkpoints. lengths [tokens]."""
    grid, subjects, cells = config.grid, [], []
    for part in suite_module(config.eval.suite).parts(config.eval):
        _check_sharing(part.suite, config.work.sequence_parallel)
    share = join_sequence_group(config.work.sequence_parallel)
    progress = Progress(config.work.progress_bar)
    try:
        for number, (path, name) in enumerate(zip(grid.checkpoints, names, strict=True)):
            opened = open_folder(path, config.work.device, config.work.dtype)
            _check_heads(opened.model, path, config.work.sequence_parallel)
            opened.model.sequence = share
            tried = grid.frequencies, grid.visibilities, grid.logit_scales
            subject = subject_of(opened, path, name, *tried, config.text.begin)
            asked = [
                (part, replace(setup, points=suite_module(part.suite).points(part, lengths)))
                for part in suite_module(config.eval.suite).parts(config.eval)
            ]
            cells += measure_cells(asked, subject, store, progress, len(names) - number)
            subjects.append(subject.facts)
            del opened, subject  # before the next is opened: two models may not fit
            _free()
    finally:
        progress.close()
    return subjects, cells


def _check_sharing(suite: str, n_ranks: int) -> None:
    """UserError E-EVAL-08 where no windows can be shared by so many ranks."""
    if n_ranks > 1 and not suite_module(suite).SHARES:
        raise UserError(
            f"E-EVAL-08 work.sequence_parallel={n_ranks}: the suite {suite} reads each text on one process. Fix: "
            "work.sequence_parallel=1, or +eval=perplexity or position_loss"
        )
    if dist.world_size() % n_ranks:
        raise UserError(
            f"E-EVAL-08 work.sequence_parallel={n_ranks}: {dist.world_size()} processes are no groups of {n_ranks}. "
            f"Fix: start a multiple of {n_ranks}"
        )


def _check_heads(model: Transformer, path: str, n_ranks: int) -> None:
    """UserError E-EVAL-08 where the ranks cannot share the heads of a model."""
    mixing = [kind for kind in dict.fromkeys(model.kinds) if model.position_of(kind).mixes_heads]
    if n_ranks > 1 and (mixing or model.shape.n_heads % n_ranks):
        why = "its position scheme mixes all heads" if mixing else f"it has {model.shape.n_heads} heads"
        raise UserError(
            f"E-EVAL-08 work.sequence_parallel={n_ranks}: the ranks share the heads of {path}, and {why}. Fix: "
            f"work.sequence_parallel={1 if mixing else math.gcd(model.shape.n_heads, n_ranks)}"
        )


def measure_cells(
    asked: Sequence[tuple[Any, Setup]],
    subject: Subject,
    store: Store | None,
    progress: Progress,
    n_models: int = 1,
) -> list[Cell]:
    """All cells of one model, the first of n_models that are left; the last variant stays on it. COLLECTIVE.

    asked: settings of a suite, and with what it is asked. store: None: nothing is kept.
    """
    rows = []
    # First what is known or impossible, in every suite and variant, then the measuring: only so is the time left the
    # time left.
    for settings, setup in asked:
        suite = suite_module(settings.suite)
        material = suite.prepare(settings, subject, setup)
        for label, variant in subject.variants.items():
            # The longest first: passes over it give shorter windows too, and if memory runs out, it does so at once.
            row = [Slot(suite, settings, subject, label, variant, point) for point in reversed(setup.points)]
            cells = {slot: _without_measuring(slot, material, setup, store) for slot in row}
            work = _work([slot for slot, cell in cells.items() if cell is None], material)
            rows.append((setup, material, cells, work))
    progress.expect(sum(sum(work.values()) for *_, work in rows), n_models)
    for setup, material, cells, work in rows:
        for slot, each in work.items():
            progress.cell(f"{subject.name}, {slot.label}, {slot.point}", each)
            cells[slot] = _measured(slot, material, replace(setup, progress=progress.share), store)
    return [cell for *_, cells, _ in rows for cell in reversed(cells.values()) if cell is not None]


@dataclass(frozen=True, eq=False)
class Slot:
    """Where in the grid a cell is: a model (subject) under a variant, called `label` in reports, at a point."""

    suite: ModuleType
    settings: Any
    subject: Subject
    label: str
    variant: Variant
    point: Point

    def content(self, material: Any, setup: Setup) -> dict[str, Any]:
        """Everything the result depends on, as plain JSON."""
        # Without the options that list the points: one more point must not make the others new.
        options = {key: value for key, value in asdict(self.settings).items() if key not in self.suite.AXIS}
        return {
            "suite": self.settings.suite,
            "version": self.suite.VERSION,
            "settings": self.suite.of_cell(options, self.point),
            "weights": self.subject.facts.weights,
            "training_window": self.subject.training_window,
            "variant": described(self.variant),
            "point": self.point,
            # What this cell reads, not all there is: what stands behind it in a text leaves it as it is.
            "material": self.suite.fingerprint(material, self.point),
            "seed": setup.seed,
            "dtype": str(next(self.subject.model.parameters()).dtype),
        }

    def record(self, **what: Any) -> Cell:
        place = {"subject": self.subject.name, "variant": self.label, "point": self.point}
        return Cell(suite=self.settings.suite, **place, **what)


def _without_measuring(slot: Slot, material: Any, setup: Setup, store: Store | None) -> Cell | None:
    """A cell that is impossible, or known already."""
    if slot.variant.problem:
        return slot.record(status="impossible", reason=slot.variant.problem)
    slot.variant.put_on(slot.subject.model)
    reason = slot.suite.impossible(slot.settings, slot.subject, slot.point, material)
    if reason:
        return slot.record(status="impossible", reason=reason)
    if store is None or not slot.suite.CACHED:
        return None
    # Asked on one rank for all: a file that appears between two looks would send ranks different ways, and the next
    # collective would never end.
    known = dist.on_main(lambda: store.get(slot.content(material, setup)))
    return None if known is None else slot.record(status="done", result=known["result"], seconds=known["seconds"])


def _work(row: Sequence[Slot], material: Any) -> dict[Slot, float]:
    """Of places under one variant, measured in this order, as the suite counts it."""
    if not row:
        return {}
    first = row[0]
    first.variant.put_on(first.subject.model)
    work = first.suite.work(first.settings, first.subject, [slot.point for slot in row], material)
    return dict(zip(row, work, strict=True))


def _measured(slot: Slot, material: Any, setup: Setup, store: Store | None) -> Cell:
    slot.variant.put_on(slot.subject.model)
    began = time.perf_counter()
    suite = slot.suite
    parts, reason = on_all_ranks(lambda: suite.measure(slot.settings, slot.subject, slot.point, material, setup))
    if reason:
        return slot.record(status="out_of_memory", reason=reason)
    # On every rank, not on the first alone: a suite may keep what it has seen for the cells to come (perplexity does),
    # and all ranks must take the same way there.
    result = suite.combine(slot.settings, slot.point, material, parts)
    seconds = time.perf_counter() - began
    if store is not None and suite.CACHED:
        dist.on_main(lambda: store.put(slot.content(material, setup), result, seconds))
    return slot.record(status="done", result=result, seconds=seconds)


def on_all_ranks(action: Callable[[], T]) -> tuple[list[T], str]:
    """Every rank's result of what calls no collective; or why there is none: memory that ran out on any of them.
    COLLECTIVE. A DataError of one rank is raised on all."""

    def share() -> tuple[T | None, str]:
        try:
            return action(), ""
        except Exception as error:
            if not ran_out(error):
                raise
            return None, f"out of memory on rank {dist.rank()}: {(str(error) or 'host memory').splitlines()[0][:200]}"

    # Its handler is left before anything is freed: the error's traceback keeps the tensors that filled the memory
    # alive. All ranks come here, whatever became of their share: one that left before would leave the others waiting.
    result, reason = dist.on_each(share)
    if reason:
        _free()
    gathered: Any = dist.all_gather_object((result, reason))
    return [result for result, _ in gathered], next((reason for _, reason in gathered if reason), "")


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
