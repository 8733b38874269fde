"""When a training saves, waits for a save and deletes older checkpoints."""

import time
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coca_train import checkpoint
from coca_train.checkpoint.commit import ABANDON_S
from coca_train.engine.base import Engine
from coca_train.runtime import dist, job
from coca_train.runtime.errors import UserError
from coca_train.runtime.threads import Task
from coca_train.tracking.writers import MetricsWriter
from coca_train.training.data import Unchanged


class Saver:
    """Save checkpoints in the background of a training: a context manager around it, called after every step.

    A failed save affects no earlier checkpoint; MAX_FAILURES in a row end the run.

    data: compared before a save. metrics: its file is on the disk before a checkpoint that names it. borders: steps
    whose checkpoints are never deleted. frozen: the exact weights that are not trained.
    """

    def __init__(
        self,
        run_dir: Path,
        runner: Engine,
        meta: checkpoint.Meta,
        lock: checkpoint.RunLock,
        data: Unchanged,
        metrics: MetricsWriter,
        keep: int,
        borders: Container[int] = (),
        frozen: checkpoint.Frozen | None = None,
    ) -> None:
        self.run_dir, self.meta, self.keep, self.borders = run_dir, meta, keep, borders
        self.data, self.metrics = data, metrics
        self.saves = checkpoint.Saves(run_dir, runner, lock, frozen, metrics.sync)
        self.failures, self.slowest_s = 0, 0.0
        # Of the save in flight: for how long it blocked the training, and how much of that was a wait for it.
        self._step, self._blocked_s, self._waited_s = 0, 0.0, 0.0
        self._deleting: list[Task[None]] = []

    def __call__(self, step: int, due: bool, wait: bool) -> bool:
        """COLLECTIVE, after every step. Advance the save in flight, and begin another where one is due; False: a save
        has failed, and the last good checkpoint is untouched.

        due: a save is; one at a time is in flight, so it waits for the one before. wait: for this one as well.
        """
        good = self._proceed(wait=due)
        if due:
            began = time.monotonic()
            self.data.check(step, everything=wait)
            self._await_deletions()  # the room that it gives back is counted on
            error = self.saves.begin(step, replace(self.meta, metrics=self.metrics.written()))
            self._step, self._blocked_s, self._waited_s = step, time.monotonic() - began, 0.0
            good = self._count_failure(error) and (not wait or self._proceed(wait))
            if wait:  # the last one: what comes now may need the memory, and look at the folder
                self.saves.free()
                self._await_deletions()
        return good

    def _proceed(self, wait: bool) -> bool:
        """Advance the save in flight; False: it has failed."""
        if not self.saves.in_flight:
            return True
        began = time.monotonic()
        ended = self.saves.proceed(wait)
        if wait:
            self._waited_s = time.monotonic() - began
        if ended and self.saves.error is None:
            checkpoint.prune(self.run_dir, self.keep, self.meta.run_id, self.borders, self._delete)
        self._blocked_s += time.monotonic() - began
        if not ended:
            return True
        if good := self._count_failure(self.saves.error):
            self.failures = 0
            self._log_duration()
        return good

    def _log_duration(self) -> None:
        background_s = max(0.0, self.saves.background_s - self._waited_s)
        blocked = f"blocked training for {self._blocked_s:.2f} s ({background_s:.2f} s in background)"
        dist.log(f"save      step {self._step}: {blocked}")
        # A preempted run must have time for all of it, whatever a training has hidden.
        if (took_s := self._blocked_s + background_s) > self.slowest_s:
            self.slowest_s = took_s
            job.note("save_s", f"{took_s:.3f}")

    def _delete(self, trash: Path) -> None:
        self._deleting.append(self.saves.delete(trash))

    def _await_deletions(self, timeout_s: float | None = None) -> None:
        """Wait for the deletions; the next start sweeps what the disk could not delete."""
        for task in self._deleting:
            task.join(timeout_s)
        self._deleting.clear()

    def _count_failure(self, error: UserError | None) -> bool:
        """Whether there is no error; raise the last of too many in a row."""
        if error is None:
            return True
        self.failures += 1
        if self.failures >= checkpoint.MAX_FAILURES:
            raise error
        dist.log(f"WARNING: {error} (save {self.failures} of {checkpoint.MAX_FAILURES} that may fail in a row)")
        return False

    def __enter__(self) -> "Saver":
        self.saves.reserve()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Publish the save in flight, where that needs no rank that may be gone."""
        together = isinstance(error, UserError) and error.on_all_ranks
        alone = isinstance(error, Exception) and dist.world_size() == 1
        if self.saves.in_flight and (together or alone):
            with suppress(UserError):  # there is an error already
                self._proceed(wait=True)
        self.saves.abandon()
        self._await_deletions(ABANDON_S)
