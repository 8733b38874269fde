"""Saving: a checkpoint appears whole and verified, or not at all, and never harms the one before it.

What is written when, and what a kill right after it leaves:

1. rank 0 makes checkpoints/.tmp-step-N-XXXX           a folder that no start looks at, and the next one sweeps
2. every rank copies its part of the state             the same
   from here on the training goes on
3. every rank's thread writes its shard and syncs it   the same
   after a step, once all are done, or where the training waits for them
4. all report digest or failure; one failure ends it   the same; the folder is removed
   from here on the training goes on again; a thread of rank 0 does what follows
5. the manifest is written and synced, the folder too  the same: complete, but not under its name
6. is the run still this process's own?                the same
7. rename to step-N, then sync of checkpoints/         the checkpoint; before the sync a power cut may undo the rename
8. `latest` is replaced                                the checkpoint; `latest` is a hint that no start relies on
   after a step, once that is done
9. older ones are renamed to .trash-…, then deleted    whole checkpoints, and trash that the next start sweeps

A rename makes visible only what was synced before it, and nothing is deleted before newer checkpoints have verified.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import NonFinite, file_size
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import FOLDER, Meta
from coca_train.checkpoint.publishing import body_of, open_folder, publish, with_files
from coca_train.checkpoint.recovery import first_verified, trust
from coca_train.checkpoint.weights import Frozen, Spec
from coca_train.checkpoint.writing import HostCopy, Part, Task, room, shapes, write_shard
from coca_train.engine.base import Engine
from coca_train.engine.process import ran_out
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import DeviceMemoryError, DivergedError, LockedError, StorageError, UserError

MAX_FAILURES = 3  # consecutive; then the run gives up with the error of the last
ABANDON_S = 5.0  # for a thread to see that nobody wants its work any more
ERRORS = {"storage": StorageError, "memory": DeviceMemoryError, "nonfinite": DivergedError, "locked": LockedError}
Failure = tuple[str, str]  # (one of ERRORS; the message)


@dataclass
class _InFlight:
    """A save that goes on. body: its manifest, but for the files.

    writing: of this rank; None: it could not begin, and `failure` says why. publishing: of rank 0, once all have
    written.
    """

    target: Path
    folder: Path
    spec: Spec
    parts: list[Part]
    body: dict[str, Any]
    writing: Task[dict[str, Any]] | None = None
    failure: Failure | None = None
    written: bool = False
    publishing: Task[str] | None = None

    def is_done(self) -> bool:
        """Whether this rank has done its part of what is to be done now."""
        task = self.publishing if self.written else self.writing
        return task is None or task.is_done()


class Saves:
    """The saves of an engine into a run directory, one at a time, each beside the training.

    frozen: where the weights that are not trained come from, exactly; None: from the engine.

    `begin` and `proceed` raise DivergedError when the state is not finite and LockedError when another process has
    taken over the run; nothing is published then. What they return as an error, for full or failing storage and for
    memory that is short, is the same on every rank; the last good checkpoint stays.
    """

    def __init__(
        self, run_dir: Path, engine: Engine, lock: RunLock | None = None, frozen: Frozen | None = None
    ) -> None:
        self._root, self._engine, self._lock, self._frozen = run_dir / FOLDER, engine, lock, frozen
        self._copy = HostCopy(engine.device)
        self._reserving: Task[None] | None = None
        self._abandoned = Event()
        self._in_flight: _InFlight | None = None
        self.error: UserError | None = None  # of the last one that has ended
        self.beside_s = 0.0  # that the slowest rank wrote, and rank 0 published, of that one

    @property
    def in_flight(self) -> bool:
        """Whether one has begun and not ended: the same on every rank."""
        return self._in_flight is not None

    def reserve(self) -> None:
        """Take the memory for the copies in a thread, so that the first save need not. What is too much, it says."""
        self._reserving = Task(partial(self._copy.reserve, room(self._engine.slices(), self._frozen)))

    def begin(self, step: int, meta: Meta) -> UserError | None:
        """COLLECTIVE. Copy the engine's state and begin to write it as checkpoints/step-XXXXXXXX. None is in flight."""
        assert self._in_flight is None
        target, spec = self._root / manifest.folder_name(step), self._engine.state_spec()
        # A run that goes on from its last step, to report only, comes here again: what verifies is never written anew.
        if first_verified([target], meta.run_id)[0]:
            return None
        name, failure = _on_rank_0(lambda: open_folder(self._root, step, file_size(spec)), self._root)
        if failure is not None:
            return _told(failure)
        body, folder = body_of(step, self._engine, meta), self._root / name
        self._in_flight = one = _InFlight(target, folder, spec, [], body)
        if self._reserving is not None:
            self._reserving.join()
        try:
            one.parts = self._copy.take(self._engine.slices(), self._frozen)
            identity = {"run_id": meta.run_id, "step": str(step)}
            identity |= {"rank": str(dist.rank()), "world_size": str(dist.world_size())}
            shard = partial(
                write_shard, folder / _shard_name(), one.parts, spec, identity, self._frozen, self._abandoned
            )
            one.writing = Task(shard)
        except Exception as problem:
            one.failure = _failure(problem, self._root, step, 0)
        return None

    def proceed(self, wait: bool) -> bool:
        """COLLECTIVE. Take the one in flight on from where it is; whether it has ended, with or without an `error`.
        wait: until it has."""
        one = self._in_flight
        assert one is not None
        while wait or dist.all_reduce([float(one.is_done())], "min")[0]:
            if one.written:
                self._in_flight = None
                self._end(one, *_on_rank_0(lambda: one.publishing and one.publishing.result(), self._root))
                return True
            if (failure := self._all_written(one)) is not None:
                self._in_flight = None
                self._end(one, None, failure)
                return True
        return False

    def _all_written(self, one: _InFlight) -> Failure | None:
        """COLLECTIVE. What the ranks have written, handed to rank 0; or the failure of one of them."""
        record, failure = _result(one)
        seconds = one.writing.seconds if one.writing is not None else 0.0
        ranges = [(part.name, part.start, part.stop) for part in one.parts]
        reports = dist.all_gather_object((record, ranges, seconds, failure))
        one.written, one.parts = True, []
        self.beside_s = max(seconds for _, _, seconds, _ in reports)
        failure = next((failure for *_, failure in reports if failure), None)
        if failure is None and dist.is_main():
            files, ranges = [record for record, *_ in reports], [ranges for _, ranges, _, _ in reports]
            body = with_files(one.body, one.spec, files, ranges)
            one.publishing = Task(partial(publish, one.folder, one.target, body, self._lock))
        return failure

    def _end(self, one: _InFlight, digest: str | None, failure: Failure | None) -> None:
        """COLLECTIVE. digest: of the manifest of what is a checkpoint now."""
        self.error = None
        if failure is None:
            assert digest is not None
            trust(one.target, digest)
            self.beside_s += one.publishing.seconds if one.publishing is not None else 0.0
            return
        # A disk that fails now may refuse this too; the next start sweeps what is left.
        _on_rank_0(lambda: durable.remove_tree(one.folder), self._root)
        self.error = _told(failure)

    def free(self) -> None:
        """Give the memory for the copies back, until the next save. None is in flight."""
        assert self._in_flight is None
        self._copy = HostCopy(self._engine.device)

    def abandon(self) -> None:
        """Let go of the one in flight, where the other ranks cannot be asked: the next start sweeps it."""
        self._abandoned.set()
        one, self._in_flight = self._in_flight, None
        for task in (one.writing, one.publishing) if one is not None else ():
            if task is not None:
                task.join(ABANDON_S)


def _told(failure: Failure) -> UserError:
    """The error of a failure that leaves the run as it was; others are raised."""
    kind, message = failure
    error = ERRORS[kind](message)
    if kind in ("storage", "memory"):
        return error
    raise error


def _shard_name() -> str:
    return manifest.shard_name(dist.rank(), dist.world_size())


def _result(one: _InFlight) -> tuple[dict[str, Any] | None, Failure | None]:
    """What this rank's thread has written, or why it has not."""
    if one.writing is None:
        return None, one.failure
    try:
        return {"name": _shard_name(), "rank": dist.rank(), **one.writing.result()}, None
    except Exception as problem:
        need = file_size(shapes(one.parts, one.spec))
        return None, _failure(problem, one.target.parent, one.body["step"], need)


def _failure(problem: Exception, where: Path, step: int, need: int) -> Failure:
    """A problem of this rank, for all. need: what it has to write [bytes]. What is a bug is raised."""
    if isinstance(problem, NonFinite):
        return "nonfinite", (
            f"E-CKP-18 step {step}: {problem} holds NaN or infinity; nothing was saved. "
            "Fix: go back to an earlier checkpoint with a lower optim.lr"
        )
    if ran_out(problem):
        reason = (str(problem) or "host memory").splitlines()[0][:200]
        return "memory", (
            f"E-RUN-33 {where}: no memory on rank {dist.rank()} for a copy of its part of the state ({reason}), which "
            "a save writes beside the training; the last checkpoint is untouched. Fix: fewer ranks on a machine, more "
            "sharding (engine.zero_stage), or a machine with more memory"
        )
    if isinstance(problem, OSError):
        return _storage_failure(where, problem, need)
    raise problem


def _on_rank_0(action: Callable[[], Any], where: Path) -> tuple[Any, Failure | None]:
    """COLLECTIVE. Run on rank 0; its result or its failure, on every rank."""
    result, error = None, None
    if dist.is_main():
        try:
            result = action()
        except OSError as problem:
            error = _storage_failure(where, problem)
        except LockedError as problem:
            error = ("locked", str(problem))
    return dist.broadcast_object((result, error))


def _storage_failure(where: Path, problem: OSError, need: int | None = None) -> Failure:
    try:
        free = os.statvfs(where if where.exists() else where.parent)
        have = f"{free.f_bavail * free.f_frsize / 1e6:.1f} MB free"
    except OSError:
        have = "free space unknown"
    needed = f"needs {need / 1e6:.1f} MB, has" if need is not None else "has"
    return "storage", (
        f"E-RUN-09 {where}: the checkpoint could not be written on rank {dist.rank()} ({problem}); "
        f"the disk {needed} {have}. Fix: free space or mend the disk; the last checkpoint is untouched"
    )
