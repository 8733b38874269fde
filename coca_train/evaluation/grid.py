"""The grid: every model under every variant at every point, one cell after the other; measured cells are kept.

Models are opened one at a time. Ranks share each cell. Their parts are gathered before anything is concluded, so that a
rank that runs out of memory leaves no other waiting.

A cell is kept under a digest of everything its result depends on: suite, its version and options, weights, variant,
point, the material read, seed and precision; not device, number of ranks and micro batch. So a killed evaluation
resumes where it stopped, another grid finds the cells it shares, and a changed text or weight is never taken for the
old one.
"""

import gc
import hashlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import torch

from coca_train.engine.process import join_sequence_group
from coca_train.evaluation.configuration import CELLS, EvaluateConfig
from coca_train.evaluation.results import AnyCell, Cell, Measured, Point, Status
from coca_train.evaluation.subject import Setup, Subject, open_folder, subject_of
from coca_train.evaluation.suite import AnySuite, suite_of
from coca_train.evaluation.variants import Choice, Variant, described
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist, shortage
from coca_train.runtime.durable import encode, read_json, sealed, unsealed, write_json
from coca_train.runtime.errors import UserError
from coca_train.runtime.threads import Thread
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.terminal import clock

FORMAT = 1  # of a file with a cell
FIRST_LINE_S = 5.0
LINE_EVERY_S = 15.0
SHOW_TIME_FROM = 0.03  # of all work: before, the time left would be a guess
T = TypeVar("T")


def run_grid(
    config: EvaluateConfig, names: Sequence[str], lengths: Sequence[int], setup: Setup, store: "Store"
) -> tuple[list[Measured], list[AnyCell]]:
    """Measure, or find among what was measured, every cell. COLLECTIVE. names: of the checkpoints. lengths [tokens]."""
    grid, n_ranks, subjects, cells = config.grid, config.work.sequence_parallel, [], []
    suites = [(part, replace(setup, points=part.points(lengths))) for part in suite_of(config.eval).parts()]
    _check_sharing([part for part, _ in suites], n_ranks)
    choices = list(starmap(Choice, product(grid.rope_scalings, grid.attention_patterns, grid.logit_scales)))
    share, progress = join_sequence_group(n_ranks), Progress(config.work.progress_bar)
    try:
        for number, (path, name) in enumerate(zip(grid.checkpoints, names, strict=True)):
            opened = open_folder(path, config.work.device, config.work.dtype)
            _check_heads(opened.model, path, n_ranks)
            opened.model.sequence = share
            subject = subject_of(opened, path, name, choices, config.text.begin)
            cells += measure_cells(suites, subject, store, progress, len(names) - number)
            subjects.append(subject.facts)
            del opened, subject  # before the next is opened: two models may not fit
            _free()
    finally:
        progress.close()
    return subjects, cells


def _check_sharing(suites: Sequence[AnySuite], n_ranks: int) -> None:
    """Raise UserError E-EVAL-08 where no windows can be shared by so many ranks."""
    for suite in suites:
        if n_ranks > 1 and not suite.SHARES:
            raise UserError(
                f"E-EVAL-08 work.sequence_parallel={n_ranks}: the suite {suite.settings.suite} reads each text on one "
                "process. Fix: work.sequence_parallel=1, or +eval=perplexity"
            )
    if dist.world_size() % n_ranks:
        raise UserError(
            f"E-EVAL-08 work.sequence_parallel={n_ranks}: {dist.world_size()} processes are no groups of {n_ranks}. "
            f"Fix: start a multiple of {n_ranks}"
        )


def _check_heads(model: Transformer, path: str, n_ranks: int) -> None:
    """Raise UserError E-EVAL-08 where the ranks cannot share the heads of a model."""
    mixing = [kind for kind in dict.fromkeys(model.layer_types) if model.position_of(kind).mixes_heads]
    if n_ranks > 1 and (mixing or model.shape.n_heads % n_ranks):
        why = "its position scheme mixes all heads" if mixing else f"it has {model.shape.n_heads} heads"
        raise UserError(
            f"E-EVAL-08 work.sequence_parallel={n_ranks}: the ranks share the heads of {path}, and {why}. Fix: "
            f"work.sequence_parallel={1 if mixing else math.gcd(model.shape.n_heads, n_ranks)}"
        )


def measure_cells(
    suites: Sequence[tuple[AnySuite, Setup]],
    subject: Subject,
    store: "Store | None",
    progress: "Progress",
    n_models: int = 1,
) -> list[AnyCell]:
    """Measure all cells of one model, the first of n_models that are left; the last variant stays on it. COLLECTIVE.

    suites: each with its setup. store: None: nothing is kept.
    """
    rows: list[dict[Slot, AnyCell | None]] = []
    left: dict[Slot, float] = {}  # to be measured, and the work it takes
    # All that is known or impossible first: only then is the time left known.
    for suite, setup in suites:
        material = suite.prepare(subject, setup)
        for label, variant in subject.variants.items():
            # The longest first: if memory runs out, it does so at once.
            row = [Slot(suite, setup, subject, label, variant, point, material) for point in reversed(setup.points)]
            rows.append({slot: slot.find(store) for slot in row})
            if new := [slot for slot in row if rows[-1][slot] is None]:
                variant.apply_to(subject.model)
                left |= zip(new, suite.work(subject, [slot.point for slot in new], material), strict=True)
    progress.expect(sum(left.values()), n_models)
    for cells in rows:
        for slot in [slot for slot in cells if slot in left]:
            progress.cell(f"{subject.name}, {slot.label}, {slot.point}", left[slot])
            cells[slot] = slot.measure(progress, store)
    return [cell for cells in rows for cell in reversed(cells.values()) if cell is not None]


@dataclass(frozen=True, eq=False)
class Slot:
    """Where in the grid a cell is: a model under a variant, called `label` in reports, at a point of a suite.

    material: what the suite prepared for the model.
    """

    suite: AnySuite
    setup: Setup
    subject: Subject
    label: str
    variant: Variant
    point: Point
    material: object

    def find(self, store: "Store | None") -> AnyCell | None:
        """Return a cell that is impossible, or was measured before; None: it must be measured. COLLECTIVE."""
        if self.variant.problem:
            return self.record("impossible", reason=self.variant.problem)
        self.variant.apply_to(self.subject.model)
        reason = self.suite.impossible(self.subject, self.point, self.material)
        if self.subject.model.bidirectional and not self.suite.BIDIRECTIONAL:
            reason = "it reads in both directions, and sees the tokens that it would be asked for"
        if reason:
            return self.record("impossible", reason=reason)
        if store is None or not self.suite.CACHED:
            return None
        # Looked up on one rank for all: a file that appears between two looks would send ranks different ways, and the
        # next collective would never end.
        known = dist.broadcast_from_rank0(lambda: store.get(self.content()))
        return None if known is None else self.record("done", result=known.result, seconds=known.seconds)

    def measure(self, progress: "Progress", store: "Store | None") -> AnyCell:
        """Measure the cell. COLLECTIVE."""
        self.variant.apply_to(self.subject.model)
        began, suite, setup = time.perf_counter(), self.suite, replace(self.setup, progress=progress.share)
        parts, reason = on_all_ranks(lambda: suite.measure(self.subject, self.point, self.material, setup))
        if reason:
            return self.record("out_of_memory", reason=reason)
        # On every rank, not on the first alone: a suite may keep what it has seen for the cells to come (perplexity
        # does), and all ranks must take the same way there.
        result = suite.combine(self.point, self.material, {key: each for part in parts for key, each in part.items()})
        seconds = time.perf_counter() - began
        if store is not None and suite.CACHED:
            dist.broadcast_from_rank0(lambda: store.put(self.content(), Known(result, seconds)))
        return self.record("done", result=result, seconds=seconds)

    def content(self) -> JsonObject:
        """Return everything the result depends on, as plain JSON."""
        return {
            "suite": self.suite.settings.suite,
            "version": self.suite.VERSION,
            "settings": self.suite.options(self.point),
            "weights": self.subject.facts.weights,
            "training_window": self.subject.training_window,
            "variant": described(self.variant),
            "point": self.point,
            # What this cell reads, not all there is: text after it leaves the cell as it is.
            "material": self.suite.fingerprint(self.material, self.point),
            "seed": self.setup.seed,
            "dtype": str(next(self.subject.model.parameters()).dtype),
        }

    def record(
        self, status: Status, *, result: JsonObject | None = None, reason: str = "", seconds: float = 0.0
    ) -> AnyCell:
        return Cell(
            suite=self.suite.settings.suite,
            subject=self.subject.name,
            variant=self.label,
            point=self.point,
            status=status,
            result=result,
            reason=reason,
            seconds=seconds,
        )


def on_all_ranks(action: Callable[[], T]) -> tuple[list[T], str]:
    """Return every rank's result of what calls no collective; or why there is none: memory that ran out on any of them.
    COLLECTIVE. A DataError of one rank is raised on all."""

    def share() -> tuple[T | None, str]:
        try:
            return action(), ""
        except Exception as error:
            if not shortage.is_out_of_memory(error):
                raise
            return None, f"out of memory on rank {dist.rank()}: {shortage.reason(error)}"

    # Its handler is left before anything is freed: the error's traceback keeps the tensors that filled the memory
    # alive. All ranks come here, whatever became of their share: one that left before would leave the others waiting.
    result, reason = dist.raise_on_all_ranks(share)
    if reason:
        _free()
    gathered = dist.all_gather_object((result, reason))
    reason = next((reason for _, reason in gathered if reason), "")
    return [result for result, _ in gathered if result is not None], reason


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Known(NamedTuple):
    """A measured cell. seconds: of measuring it."""

    result: JsonObject
    seconds: float


class Store:
    """One JSON file a cell in `folder`; None: nothing is kept. also: further folders in which cells are looked for."""

    def __init__(self, folder: Path | None, also: Sequence[Path] = ()) -> None:
        self.folder, self.also = folder, also

    def get(self, content: JsonObject) -> Known | None:
        """Return a measured cell; None when there is none, or its file is damaged."""
        for folder in (self.folder, *self.also):
            if folder is not None and (kept := _read(_file_of(folder, content))) is not None:
                return kept
        return None

    def put(self, content: JsonObject, known: Known) -> None:
        """Keep a cell, with its content for people to read. Raises StorageError when the disk refuses."""
        if self.folder is not None:
            write_json(_file_of(self.folder, content), sealed({"content": content, **known._asdict()}))


def kept_in_reports(runs: Iterable[Path]) -> list[Path]:
    """Return where the reports of finished runs keep their cells: what a training measured is not measured again."""
    return [folder for run in runs for folder in sorted((run / "report").glob(f"**/{CELLS}")) if folder.is_dir()]


def _file_of(folder: Path, content: JsonObject) -> Path:
    # Sorted, so that the order in which settings are declared is no part of it.
    text = json.dumps(encode({"format": FORMAT, **content}), sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    return folder / key[:2] / f"{key}.json"


def _read(path: Path) -> Known | None:
    try:
        kept = unsealed(read_json(path))
        return Known(dict(kept["result"]), float(kept["seconds"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # a torn file is measured again: it is a cache
        return None


class Progress:
    """A bar, or a line now and then where stderr is no terminal. Work is in any unit that all cells share."""

    def __init__(self, shown: bool) -> None:
        from tqdm import tqdm  # on first use: --help and --cfg job come without it

        shown = shown and dist.is_main()
        form = "{desc} |{bar}|"
        self._bar: tqdm[NoReturn] = tqdm(total=0, bar_format=form, disable=None if shown else True, leave=False)
        self._total, self._words = 0.0, ""
        self._before = self._work = self._done = 0.0
        self._began: float | None = None  # with the first cell: what comes before is no part of the work
        self._closed = threading.Event()
        # On a thread: a cell of long windows reports nothing for minutes on a busy machine, which looks like a hang.
        self._lines = Thread(self._print_lines) if shown and not sys.stderr.isatty() else None

    def expect(self, work: float, n_models: int) -> None:
        """Say how much is left of the present model, and of each of the n_models - 1 after it, as far as one knows."""
        # A model is opened when its turn comes, so nobody knows yet what of the later ones is measured already.
        self._before, self._work = self._before + self._work, 0.0
        self._total = self._bar.total = self._before + work * n_models

    def cell(self, words: str, work: float) -> None:
        """Begin a cell."""
        self._began = time.monotonic() if self._began is None else self._began
        self._words = words
        self._before, self._work = self._before + self._work, work
        self.share(0.0)

    def share(self, share: float) -> None:
        """Say how much of the present cell is done, 0 to 1."""
        self._done = min(self._before + share * self._work, self._total)
        self._bar.set_description_str(self.line(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def close(self) -> None:
        self._closed.set()
        if self._lines is not None:
            self._lines.join()
        self._bar.close()

    def _print_lines(self) -> None:
        wait_s = FIRST_LINE_S
        while not self._closed.wait(wait_s):
            wait_s = LINE_EVERY_S
            if self._words:
                print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return how much is done, of what, and the time left once enough is done to estimate it."""
        done = self._done / self._total if self._total else 0.0
        if self._began is None or done < SHOW_TIME_FROM:
            return f"{done:.0%}  {self._words}"
        return f"{done:.0%}  {self._words}  {clock((time.monotonic() - self._began) * (1 - done) / done)} left"
