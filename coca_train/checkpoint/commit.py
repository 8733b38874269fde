"""Saving: a checkpoint appears whole and verified, or not at all, and never harms the one before it.

What is written when, and what a kill right after it leaves:

1. rank 0 makes checkpoints/.tmp-step-N-XXXX           a folder that no start looks at, and the next one sweeps
2. every rank writes its shard there and syncs it      the same
3. all report digest or failure; one failure ends it   the same; the folder is removed
4. rank 0 writes and syncs the manifest, the folder    the same: complete, but not under its name
5. rank 0 looks whether the run is still its own       the same
6. rename to step-N, then sync of checkpoints/         the checkpoint; before the sync a power cut may undo the rename
7. `latest` is replaced                                the checkpoint; `latest` is a hint that no start relies on
8. older ones are renamed to .trash-…, then deleted    whole checkpoints, and trash that the next start sweeps

A rename makes visible only what was synced before it, and nothing is deleted before newer checkpoints have verified.
"""

import errno
import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import NonFinite, ShardWriter, file_size
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import FOLDER, Meta
from coca_train.checkpoint.recovery import TEMPORARY, TRASH, first_verified, step_folders, verified
from coca_train.checkpoint.weights import Frozen
from coca_train.engine.base import Engine
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import DivergedError, LockedError

MAX_FAILURES = 3  # consecutive; then the run gives up with StorageError
SPARE = 16 << 20  # [bytes] left free beside a checkpoint


def save(
    run_dir: Path, step: int, engine: Engine, meta: Meta, lock: RunLock | None = None, frozen: Frozen | None = None
) -> str | None:
    """COLLECTIVE. Publish checkpoints/step-XXXXXXXX of the engine's state.

    frozen: where the weights that are not trained come from, exactly; None: from the engine.

    Returns None, or for full or failing storage the line for the user, the same on every rank; the last good one stays.
    Raises DivergedError when the state is not finite and LockedError when another process has taken over the run;
    nothing is published then.
    """
    root = run_dir / FOLDER
    target = root / manifest.folder_name(step)
    spec = engine.state_spec()
    size = file_size(spec)
    # A run that goes on from its last step, to report only, comes here again: what verifies is never written anew.
    if first_verified([target], meta.run_id)[0]:
        return None
    folder, error = _on_rank_0(lambda: _open(root, step, size), root)
    if error is None:
        record, error = _write_shard(root / folder, step, engine, spec, meta, frozen)
        reports = dist.all_gather_object((record, error))
        error = next((error for _, error in reports if error), None)
        if error is None:
            body = _manifest(step, engine, meta, [record for record, _ in reports])
            _, error = _on_rank_0(lambda: _publish(root / folder, target, body, lock), root)
        if error is not None:
            # A disk that fails now may refuse this too; the next start sweeps what is left.
            _on_rank_0(lambda: durable.remove_tree(root / folder), root)
    if error is not None and error[0] != "storage":
        raise {"nonfinite": DivergedError, "locked": LockedError}[error[0]](error[1])
    return error[1] if error else None


Failure = tuple[str, str]  # (storage, nonfinite or locked; the message)


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


def _write_shard(
    folder: Path, step: int, engine: Engine, spec: dict[str, tuple[int, ...]], meta: Meta, frozen: Frozen | None
) -> tuple[dict[str, Any] | None, Failure | None]:
    """COLLECTIVE. Write the tensors whose index is this rank's modulo the world size.

    After a failure the state is still gathered to its end, as the other ranks are waiting in it.
    """
    rank, world = dist.rank(), dist.world_size()
    name = manifest.shard_name(rank, world)
    mine = {key: shape for index, (key, shape) in enumerate(spec.items()) if index % world == rank}
    identity = {"run_id": meta.run_id, "step": str(step), "rank": str(rank), "world_size": str(world)}
    writer, failure, record = None, None, None
    try:
        writer = ShardWriter(folder / name, mine, identity)
    except OSError as problem:
        failure = _storage_failure(folder.parent, problem, file_size(mine))
    for key, tensor in engine.named_state(keep=lambda index: index % world == rank):
        if tensor is None or writer is None or failure:
            continue  # and not break: every tensor is a collective that the other ranks are in
        try:
            writer.write(key, frozen.tensor(key) if frozen is not None and frozen.holds(key) else tensor)
        except NonFinite:
            failure = ("nonfinite", f"E-CKP-18 step {step}: {key} holds NaN or infinity; nothing was saved. "
                       "Fix: go back to an earlier checkpoint with a lower optim.lr")  # fmt: skip
        except OSError as problem:
            failure = _storage_failure(folder.parent, problem, file_size(mine))
    try:
        if writer is not None and not failure:
            record = {"name": name, "rank": rank, **writer.finish()}
    except OSError as problem:
        failure = _storage_failure(folder.parent, problem, file_size(mine))
    finally:
        if writer is not None:
            writer.close()
    return record, failure


def _manifest(step: int, engine: Engine, meta: Meta, records: list[Any]) -> dict[str, Any]:
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
        "files": records,
    } | ({} if meta.lora is None else {manifest.LORA: meta.lora})


def _publish(folder: Path, target: Path, body: dict[str, Any], lock: RunLock | None) -> None:
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


__all__ = ["MAX_FAILURES", "Meta", "prune", "save"]
