"""When a training saves, waits for a save, and deletes older ones; and what it says of that."""

import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from coca_train import checkpoint
from coca_train.engine.base import Engine
from coca_train.runtime import dist, job
from coca_train.runtime.errors import DivergedError, UserError


class Saver:
    """Saves checkpoints beside the training; a failed save costs nothing that is already safe, three in a row end the
    run. A context manager, around the training.

    borders: steps whose checkpoints are never deleted. frozen: the weights that are not trained, exactly.
    """

    def __init__(
        self,
        run_dir: Path,
        runner: Engine,
        meta: checkpoint.Meta,
        lock: checkpoint.RunLock,
        keep: int,
        borders: Container[int] = (),
        frozen: checkpoint.Frozen | None = None,
    ) -> None:
        self.run_dir, self.meta, self.keep, self.borders = run_dir, meta, keep, borders
        self.saves = checkpoint.Saves(run_dir, runner, lock, frozen)
        self.failures, self.slowest_s = 0, 0.0
        # Of the save in flight: for how long the training stood still for it, and since when it goes on.
        self._step, self._stall_s, self._since = 0, 0.0, 0.0

    def __call__(self, step: int, due: bool, wait: bool) -> bool:
        """COLLECTIVE, after every step. due: a save is; one at a time is in flight, so that before it is waited for.
        wait: for this one as well. False: a save has failed, and the last good checkpoint is untouched."""
        good = True
        if self.saves.in_flight and (due or self.saves.is_written()):
            good = self._finish()
        if due:
            began = time.monotonic()
            error = self.saves.begin(step, self.meta)
            self._step, self._since = step, time.monotonic()
            self._stall_s = self._since - began
            good = self._judged(error)
            if good and wait and self.saves.in_flight:
                good = self._finish()
            if wait and not self.saves.in_flight:
                self.saves.free()  # the last one: what comes now may need the memory
        return good

    def _finish(self) -> bool:
        began = time.monotonic()
        if not self._judged(self.saves.finish()):
            return False
        checkpoint.prune(self.run_dir, self.keep, self.meta.run_id, self.borders)
        self._stall_s += time.monotonic() - began
        self.failures = 0
        beside_s = min(self.saves.written_s, began - self._since)
        dist.log(
            f"save      step {self._step}: the training stood still for {self._stall_s:.2f} s; "
            f"{beside_s:.2f} of {self.saves.written_s:.2f} s of writing went on beside it"
        )
        # A preempted run must have time for all of it, whatever a training has hidden.
        if (took_s := self._stall_s + beside_s) > self.slowest_s:
            self.slowest_s = took_s
            job.note("save_s", f"{took_s:.3f}")
        return True

    def _judged(self, error: UserError | None) -> bool:
        """Whether there is none; the last of too many is raised."""
        if error is None:
            return True
        self.failures += 1
        if self.failures >= checkpoint.MAX_FAILURES:
            raise error
        dist.log(f"WARNING: {error} (save {self.failures} of {checkpoint.MAX_FAILURES} that may fail in a row)")
        return False

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """What is in flight is still published, where that asks for no rank that may be gone."""
        together = kind is not None and issubclass(kind, DivergedError)
        alone = kind is not None and issubclass(kind, Exception) and dist.world_size() == 1
        if self.saves.in_flight and (together or alone):
            with suppress(UserError):  # there is an error already
                self._finish()
        self.saves.abandon()
