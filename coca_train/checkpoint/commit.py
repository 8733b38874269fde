"""Saving: a checkpoint appears whole and verified, or not at all, and never harms the one before it.

What is written when, and what a kill right after it leaves:

1. rank 0 makes checkpoints/.tmp-step-N-XXXX           a folder that no start looks at, and the next one sweeps
2. every rank copies its part of the state             the same
   from here on the training goes on
3. every rank's thread writes its shard and syncs it   the same
   after a step, once all are done, or where the training waits for them
4. all report digest or failure; one failure ends it   the same; the folder is removed
   from here on the training goes on again; a thread of rank 0 does what follows
5. metrics.jsonl is synced, which the manifest names   the same
   the manifest is written and synced, the folder too  the same: complete, but not under its name
6. is the run still this process's own?                the same
7. rename to step-N, then sync of checkpoints/         the checkpoint; before the sync a power cut may undo the rename
8. `latest` is replaced                                the checkpoint; `latest` is a hint that no start relies on
   after a step, once that is done
9. older ones are renamed to .trash-…, then deleted    whole checkpoints, and trash that the next start sweeps

A rename makes visible only what was synced before it, and nothing is deleted before newer checkpoints have verified.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import NonFinite, file_size
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import FOLDER, Meta, Spec
from coca_train.checkpoint.recovery import TEMPORARY, TRASH, first_verified, mark_verified, step_folders, verified
from coca_train.checkpoint.weights import Frozen
from coca_train.checkpoint.writing import HostCopy, Part, elements_to_copy, shard_shapes, write_shard
from coca_train.engine.base import Engine
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import DivergedError, LockedError, ResourceError, StorageError, UserError
from coca_train.runtime.shortage import FIX, MEMORY, reason, shortage
from coca_train.runtime.threads import Task, Worker
from coca_train.runtime.untrusted_io import JsonObject

T = TypeVar("T")

MAX_FAILURES = 3  # consecutive; then the run gives up with the error of the last
# Of a directory that is gone, read-only or no longer ours: another try would fail as well.
LASTING = {errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM}
SPARE = 16 << 20  # [bytes] left free in addition to a checkpoint
ABANDON_S = 5.0  # for a thread to see that its work is abandoned


@dataclass
class _Save:
    """A save in flight. body: its manifest without the files.

    writing: of this rank; None: it could not begin, and `failure` says why. publishing: of rank 0, once all have
    written.
    """

    target: Path
    folder: Path
    spec: Spec
    parts: list[Part]
    body: JsonObject
    writing: Task[JsonObject] | None = None
    failure: UserError | None = None
    written: bool = False
    publishing: Task[str] | None = None

    def is_done(self) -> bool:
        """Whether this rank has done its part of what is to be done now."""
        task = self.publishing if self.written else self.writing
        return task is None or task.is_done()


class Saves:
    """The saves of an engine into a run directory, one at a time, each in the background of the training.

    frozen: where the weights that are not trained come from, exactly; None: from the engine. sync: brings to the disk
    what a checkpoint relies on and does not hold, from any thread.

    `begin` and `proceed` raise DivergedError when the state is not finite and LockedError when another process has
    taken over the run; nothing is published then. A StorageError or ResourceError, which leaves the last good
    checkpoint as it was, is returned by `begin` and kept in `error` by `proceed`, the same on every rank.
    """

    def __init__(
        self,
        run_dir: Path,
        engine: Engine,
        lock: RunLock | None = None,
        frozen: Frozen | None = None,
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        self._root, self._engine, self._lock, self._frozen = run_dir / FOLDER, engine, lock, frozen
        self._sync, self._worker = sync, Worker()
        self._copy = HostCopy(engine.device)
        self._reserving: Task[None] | None = None
        self._abandoned = Event()
        self._save: _Save | None = None
        self.error: UserError | None = None  # of the last save that has ended
        self.background_s = 0.0  # that the slowest rank wrote, and rank 0 published, of that save

    @property
    def in_flight(self) -> bool:
        """Whether a save has begun and not ended: the same on every rank."""
        return self._save is not None

    def reserve(self) -> None:
        """Allocate the memory for the copies in a thread, so that the first save need not."""
        n_elements = elements_to_copy(self._engine.slices(), self._frozen)
        self._reserving = self._worker.submit(partial(self._copy.reserve, n_elements))

    def begin(self, step: int, meta: Meta) -> UserError | None:
        """COLLECTIVE. Copy the engine's state and begin to write it as checkpoints/step-XXXXXXXX. None is in flight."""
        assert self._save is None
        target, spec = self._root / manifest.folder_name(step), self._engine.state_spec()
        # A run that continues from its last step, to report only, gets here again: what verifies is not written twice.
        if first_verified([target], meta.run_id)[0]:
            return None
        name, failure = _on_rank_0(lambda: make_folder(self._root, step, file_size(spec)), self._root, step)
        if failure is not None:
            return _raise_unless_harmless(failure)
        assert name is not None
        body = manifest.describe_state(step, self._engine, meta)
        self._save = save = _Save(target, self._root / name, spec, [], body)
        if self._reserving is not None:
            self._reserving.join()
        try:
            save.parts = self._copy.take(self._engine.slices(), self._frozen)
            identity = {"run_id": meta.run_id, "step": str(step)}
            identity |= {"rank": str(dist.rank()), "world_size": str(dist.world_size())}
            path = save.folder / _shard_name()
            write = partial(write_shard, path, save.parts, spec, identity, self._frozen, self._abandoned)
            save.writing = self._worker.submit(write)
        except Exception as problem:
            save.failure = _as_failure(problem, self._root, step)
        return None

    def proceed(self, wait: bool) -> bool:
        """COLLECTIVE. Advance the save in flight; return whether it has ended, with or without an `error`.
        wait: until it has."""
        save = self._save
        assert save is not None
        step = save.body["step"]
        while wait or dist.all_reduce([float(save.is_done())], "min")[0]:
            if save.written:
                self._save = None
                self._end(save, *_on_rank_0(lambda: save.publishing and save.publishing.result(), self._root, step))
                return True
            if (failure := self._gather_shards(save)) is not None:
                self._save = None
                self._end(save, None, failure)
                return True
        return False

    def _gather_shards(self, save: _Save) -> UserError | None:
        """COLLECTIVE. Send rank 0 the manifests of all shards, which it publishes in a thread; return the failure of a
        rank."""
        shard, failure = _await_shard(save)
        seconds = save.writing.seconds if save.writing is not None else 0.0
        ranges = [(part.name, part.start, part.stop) for part in save.parts]
        reports = dist.all_gather_object((shard, ranges, seconds, failure))
        save.written, save.parts = True, []
        self.background_s = max(seconds for _, _, seconds, _ in reports)
        failure = next((failure for *_, failure in reports if failure), None)
        if failure is None and dist.is_main():
            shards, ranges = [shard for shard, *_ in reports], [ranges for _, ranges, _, _ in reports]
            body = manifest.add_files(save.body, save.spec, shards, ranges)
            save.publishing = self._worker.submit(
                partial(publish, save.folder, save.target, body, self._lock, self._sync)
            )
        return failure

    def _end(self, save: _Save, digest: str | None, failure: UserError | None) -> None:
        """COLLECTIVE. Mark a published checkpoint as verified, or remove the folder of a failed save. digest: of the
        manifest."""
        self.error = None
        if failure is None:
            assert digest is not None
            mark_verified(save.target, digest)
            self.background_s += save.publishing.seconds if save.publishing is not None else 0.0
            return
        # A disk that fails now may refuse this too; the next start sweeps what is left.
        _on_rank_0(lambda: durable.remove_tree(save.folder), self._root, save.body["step"])
        self.error = _raise_unless_harmless(failure)

    def free(self) -> None:
        """Free the memory for the copies until the next save. No save may be in flight."""
        assert self._save is None
        self._copy = HostCopy(self._engine.device)

    def delete(self, folder: Path) -> Task[None]:
        """Delete a folder in the background."""
        return self._worker.submit(lambda: durable.remove_tree(folder))

    def abandon(self) -> None:
        """End, and give up a save in flight, where the other ranks cannot be reached: the next start sweeps it."""
        self._worker.close()
        self._abandoned.set()
        save, self._save = self._save, None
        for task in (save.writing, save.publishing) if save is not None else ():
            if task is not None:
                task.join(ABANDON_S)


# ---- what rank 0 does on the disk


def make_folder(root: Path, step: int, size: int) -> str:
    """Make the temporary folder of a save and return its name. Raises OSError at once when the disk cannot hold `size`
    bytes."""
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


def publish(folder: Path, target: Path, body: JsonObject, lock: RunLock | None, sync: Callable[[], None]) -> str:
    """Turn a folder with all shards into the checkpoint `target`; return the digest of its manifest.

    body: of the manifest. lock: of this process. sync: as of `Saves`. Raises OSError and LockedError.
    """
    sync()
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


def prune(
    run_dir: Path,
    keep: int,
    run_id: str,
    always: Container[int] = (),
    delete: Callable[[Path], object] = durable.remove_tree,
) -> list[str]:
    """COLLECTIVE. Delete all but the newest `keep` verified checkpoints; return the names of the deleted.

    always: steps whose checkpoints stay as well. delete: called on rank 0 with each folder, renamed to trash.

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
            return dist.broadcast_object(_move_to_trash(rest, delete) if dist.is_main() else [])
    return []


def _move_to_trash(folders: list[Path], delete: Callable[[Path], object]) -> list[str]:
    """Rename and delete folders; return the names of those that are gone, as the disk may refuse to delete one."""
    names = []
    with contextlib.suppress(OSError):
        for folder in folders:
            trash = folder.with_name(f"{TRASH}{folder.name}-{os.urandom(4).hex()}")
            os.rename(folder, trash)
            names.append(folder.name)
            delete(trash)
    return names


# ---- failures


def _raise_unless_harmless(failure: UserError) -> UserError:
    """Return a failure that leaves the run as it was; raise any other."""
    if isinstance(failure, ResourceError) or (isinstance(failure, StorageError) and failure.may_pass):
        return failure
    raise failure


def _shard_name() -> str:
    return manifest.shard_name(dist.rank(), dist.world_size())


def _await_shard(save: _Save) -> tuple[JsonObject | None, UserError | None]:
    """Wait for this rank's thread; return the manifest's entry of its shard, or why there is none."""
    if save.writing is None:
        return None, save.failure
    try:
        return {"name": _shard_name(), "rank": dist.rank(), **save.writing.result()}, None
    except Exception as problem:
        need = file_size(shard_shapes(save.parts, save.spec))
        return None, _as_failure(problem, save.target.parent, save.body["step"], need)


def _as_failure(problem: Exception, where: Path, step: int, need: int | None = None) -> UserError:
    """Return the error of a save that failed on this rank, for all ranks; raise a bug. need: what it has to write
    [bytes]."""
    if isinstance(problem, NonFinite):
        return DivergedError(
            f"E-CKP-18 step {step}: {problem} holds NaN or infinity; nothing was saved. "
            "Fix: go back to an earlier checkpoint with a lower optim.lr"
        )
    if (what := shortage(problem)) is not None:
        fix = "fewer ranks on a machine, more sharding (engine.zero_stage), or a machine with more memory"
        return ResourceError(
            f"E-RUN-33 {where}: no {what} on rank {dist.rank()} for a save, which copies its part of the state and "
            f"writes it in the background of the training ({reason(problem)}); the last checkpoint is untouched. "
            f"Fix: {fix if what == MEMORY else FIX[what]}"
        )
    if isinstance(problem, OSError):
        return _storage_error(where, problem, need)
    raise problem


def _on_rank_0(action: Callable[[], T], where: Path, step: int) -> tuple[T | None, UserError | None]:
    """COLLECTIVE. Run the action of a save on rank 0; return its result or its failure on every rank."""
    result, failure = None, None
    if dist.is_main():
        try:
            result = action()
        except LockedError as problem:
            failure = problem
        except Exception as problem:
            failure = _as_failure(problem, where, step)
    return dist.broadcast_object((result, failure))


def _storage_error(where: Path, problem: OSError, need: int | None) -> StorageError:
    stays = problem.errno in LASTING
    error = StorageError(
        f"E-RUN-09 {where}: the checkpoint could not be written on rank {dist.rank()} ({problem}); "
        f"{'the run cannot go on without its directory' if stays else _room(where, problem, need)}. "
        f"Fix: {'mount it again' if stays else 'free space or mend the disk'}; the last checkpoint is untouched"
    )
    error.may_pass = not stays
    return error


def _room(where: Path, problem: OSError, need: int | None) -> str:
    """Describe the room on a disk. need: what is to be written [bytes]."""
    needed = f"needs {need / 1e6:.1f} MB, has" if need is not None else "has"
    if problem.errno == errno.EDQUOT:  # the disk has room, for others
        return f"the disk {needed} no more of the quota"
    try:
        free = os.statvfs(where if where.exists() else where.parent)
        return f"the disk {needed} {free.f_bavail * free.f_frsize / 1e6:.1f} MB free"
    except OSError:
        return f"the disk {needed} free space unknown"
