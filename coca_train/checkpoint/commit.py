"""Saving: a checkpoint appears whole and verified, or not at all, and never harms the one before it.

What is written when, and what a kill right after it leaves:

1. rank 0 makes checkpoints/.tmp-step-N-XXXX           a folder that no start looks at, and the next one sweeps
2. every rank copies its part of the state             the same
   from here on the training goes on
3. every rank's thread writes its shard and syncs it   the same
   at the end of the first step after which all are done, or where the training waits for them
4. all report digest or failure; one failure ends it   the same; the folder is removed
5. rank 0 writes and syncs the manifest, the folder    the same: complete, but not under its name
6. rank 0 looks whether the run is still its own       the same
7. rename to step-N, then sync of checkpoints/         the checkpoint; before the sync a power cut may undo the rename
8. `latest` is replaced                                the checkpoint; `latest` is a hint that no start relies on
9. older ones are renamed to .trash-…, then deleted    whole checkpoints, and trash that the next start sweeps

A rename makes visible only what was synced before it, and nothing is deleted before newer checkpoints have verified.
"""

import errno
import math
import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import NonFinite, file_size
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import CUT, FOLDER, Meta
from coca_train.checkpoint.recovery import TEMPORARY, TRASH, first_verified, step_folders, trust, verified
from coca_train.checkpoint.weights import Frozen, Spec
from coca_train.checkpoint.writing import HostCopy, Part, Writing, shapes
from coca_train.engine.base import Engine
from coca_train.engine.process import ran_out
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import DeviceMemoryError, DivergedError, LockedError, StorageError, UserError

MAX_FAILURES = 3  # consecutive; then the run gives up with the error of the last
SPARE = 16 << 20  # [bytes] left free beside a checkpoint
ERRORS = {"storage": StorageError, "memory": DeviceMemoryError, "nonfinite": DivergedError, "locked": LockedError}
Failure = tuple[str, str]  # (one of ERRORS; the message)
Range = tuple[str, int, int]  # elements [start, stop) of a tensor, by its name


class _InFlight(NamedTuple):
    """A save whose shards are being written. body: its manifest, but for the files. writing: None where this rank could
    not begin, and `failure` says why."""

    target: Path
    folder: Path
    spec: Spec
    parts: list[Part]
    body: dict[str, Any]
    writing: Writing | None
    failure: Failure | None


class Saves:
    """The saves of an engine into a run directory, one at a time, each beside the training.

    frozen: where the weights that are not trained come from, exactly; None: from the engine.

    `begin` and `finish` return None, or, for full or failing storage and for memory that is short, the error for the
    user, the same on every rank; the last good checkpoint stays. They raise DivergedError when the state is not finite
    and LockedError when another process has taken over the run; nothing is published then.
    """

    def __init__(
        self, run_dir: Path, engine: Engine, lock: RunLock | None = None, frozen: Frozen | None = None
    ) -> None:
        self._root, self._engine, self._lock, self._frozen = run_dir / FOLDER, engine, lock, frozen
        self._copy = HostCopy(engine.device)
        self._in_flight: _InFlight | None = None
        self.written_s = 0.0  # that the slowest rank wrote, of the last one that is finished

    @property
    def in_flight(self) -> bool:
        """Whether one has begun and is not finished: the same on every rank."""
        return self._in_flight is not None

    def begin(self, step: int, meta: Meta) -> UserError | None:
        """COLLECTIVE. Copy the engine's state and begin to write it as checkpoints/step-XXXXXXXX. None is in flight."""
        assert self._in_flight is None
        target, spec = self._root / manifest.folder_name(step), self._engine.state_spec()
        # A run that goes on from its last step, to report only, comes here again: what verifies is never written anew.
        if first_verified([target], meta.run_id)[0]:
            return None
        name, error = _on_rank_0(lambda: _open(self._root, step, file_size(spec)), self._root)
        if error is not None:
            return _told(error)
        body, folder = _manifest(step, self._engine, meta), self._root / name
        parts, writing, failure = list[Part](), None, None
        try:
            parts = self._copy.take(self._engine.slices(), self._frozen)
            identity = {"run_id": meta.run_id, "step": str(step)}
            identity |= {"rank": str(dist.rank()), "world_size": str(dist.world_size())}
            writing = Writing(folder / _shard_name(), parts, spec, identity, self._frozen)
        except Exception as problem:
            failure = _failure(problem, self._root, step, 0)
        self._in_flight = _InFlight(target, folder, spec, parts, body, writing, failure)
        return None

    def is_written(self) -> bool:
        """COLLECTIVE. Whether the one in flight waits for nothing but to be finished, on all ranks."""
        assert self._in_flight is not None
        writing = self._in_flight.writing
        return dist.all_reduce([float(writing is None or writing.is_done())], "min")[0] > 0

    def finish(self) -> UserError | None:
        """COLLECTIVE. Wait for the one in flight, and publish it."""
        assert self._in_flight is not None
        one, self._in_flight = self._in_flight, None
        record, failure = _result(one)
        seconds = one.writing.seconds if one.writing is not None else 0.0
        ranges = [(part.name, part.start, part.stop) for part in one.parts]
        reports = dist.all_gather_object((record, ranges, seconds, failure))
        error = next((failure for *_, failure in reports if failure), None)
        if error is None:
            files = [record for record, *_ in reports]
            ranges = [ranges for _, ranges, _, _ in reports]
            digest, error = _on_rank_0(lambda: _publish(one, files, ranges, self._lock), self._root)
            if error is None:
                trust(one.target, digest)
                self.written_s = max(seconds for _, _, seconds, _ in reports)
        if error is not None:
            # A disk that fails now may refuse this too; the next start sweeps what is left.
            _on_rank_0(lambda: durable.remove_tree(one.folder), self._root)
        return None if error is None else _told(error)

    def free(self) -> None:
        """Give the memory for the copies back, until the next save. None is in flight."""
        assert self._in_flight is None
        self._copy = HostCopy(self._engine.device)

    def abandon(self) -> None:
        """Let go of the one in flight, where the other ranks cannot be asked: the next start sweeps it."""
        if self._in_flight is not None and self._in_flight.writing is not None:
            self._in_flight.writing.abandon()
        self._in_flight = None


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


def _cut(ranges: list[list[Range]], spec: Spec) -> dict[str, Any]:
    """The manifest's word on tensors that lie in several shards."""
    parts: dict[str, list[list[int]]] = {}
    for file, of_one in enumerate(ranges):
        for name, start, stop in of_one:
            parts.setdefault(name, []).append([file, start, stop])
    assert parts.keys() == spec.keys(), sorted(parts.keys() ^ spec.keys())
    for name, found in parts.items():
        found.sort(key=lambda part: part[1:])
        ends = [0, *(stop for *_, stop in found)]
        # Else a checkpoint would be published that nothing can be loaded from.
        assert [start for _, start, _ in found] == ends[:-1] and ends[-1] == math.prod(spec[name]), (name, found)
    return {name: {"shape": list(spec[name]), "parts": found} for name, found in parts.items() if len(found) > 1}


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


def _open(root: Path, step: int, size: int) -> str:
    """Make the temporary folder; its name. Refuses at once when the disk cannot hold the checkpoint."""
    if not root.is_dir():
        os.mkdir(root)
        durable.sync_folder(root.parent)  # else a power cut could take the folder and all checkpoints in it
    free = os.statvfs(root)
    if free.f_bavail * free.f_frsize < size + SPARE:
        raise OSError(errno.ENOSPC, f"the checkpoint needs {(size + SPARE) / 1e6:.1f} MB")
    # Never the name of an earlier try: its folder may still be there, and a frozen process may wake up and write in it.
    name = f"{TEMPORARY}{manifest.folder_name(step)}-{os.urandom(4).hex()}"
    os.mkdir(root / name)
    return name


def _manifest(step: int, engine: Engine, meta: Meta) -> dict[str, Any]:
    """All but the files: what is true of the state at this moment."""
    return {
        "format": manifest.FORMAT,
        "run_id": meta.run_id,
        "step": step,
        "world_size": dist.world_size(),
        "zero_stage": engine.zero_stage,
        "dtype": engine.dtype,
        "trainable": engine.trainable,
        "model_digest": meta.model_digest,
        "data_fingerprint": meta.data_fingerprint,
        "counters": engine.counters(),
        "progress": meta.progress,
    } | ({} if meta.lora is None else {manifest.LORA: meta.lora})


def _publish(one: _InFlight, files: list[Any], ranges: list[list[Range]], lock: RunLock | None) -> str:
    """Digest of the manifest. files, ranges: of each rank."""
    folder, target, cut = one.folder, one.target, _cut(ranges, one.spec)
    body = one.body | {"files": files} | ({CUT: cut} if cut else {})
    durable.write_new(folder / manifest.NAME, manifest.encode(body))
    durable.sync_folder(folder)
    # As late as can be: this process may have been frozen while another took over the run. A moment is left before the
    # rename; in it, both would publish the same step of the same run.
    if lock is not None:
        lock.check()
    trash = target.with_name(f"{TRASH}{target.name}-{os.urandom(4).hex()}")
    damaged = os.path.lexists(target)  # a good one would have been kept
    if damaged:
        os.rename(target, trash)  # a folder cannot be renamed over one that is not empty
    os.rename(folder, target)
    durable.sync_folder(target.parent)
    durable.replace(target.parent / "latest", f"{target.name}\n".encode())
    if damaged:
        durable.remove_tree(trash)
    return manifest.digest_of(body)


def prune(run_dir: Path, keep: int, run_id: str, always: Container[int] = ()) -> list[str]:
    """COLLECTIVE. Delete all but the newest `keep` verified checkpoints; names of the deleted.

    always: steps whose checkpoints stay as well.

    A folder goes only when `keep` newer ones verify, and by a rename first: a kill in between leaves
    either a whole checkpoint or trash. Storage errors leave the rest for the next time.
    """
    assert keep >= 2
    root = run_dir / FOLDER
    folders = dist.broadcast_object(step_folders(root) if dist.is_main() else [])
    if all(manifest.step_of(folder) in always for folder in folders[keep:]):
        return []  # nothing is to be verified for
    good = 0
    for number, folder in enumerate(folders):
        good += verified(folder, run_id, again=False)[0] is not None
        if good == keep:
            rest = [path for path in folders[number + 1 :] if manifest.step_of(path) not in always]
            deleted, _ = _on_rank_0(lambda rest=rest: [_delete(path) for path in rest], root)
            return deleted or []
    return []


def _delete(folder: Path) -> str:
    trash = folder.with_name(f"{TRASH}{folder.name}-{os.urandom(4).hex()}")
    os.rename(folder, trash)
    durable.remove_tree(trash)
    return folder.name


__all__ = ["MAX_FAILURES", "Saves", "prune"]
