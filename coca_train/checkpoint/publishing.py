"""What rank 0 does on the disk for a save: the folder, the manifest, the name, and older checkpoints deleted."""

import contextlib
import errno
import math
import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from coca_train.checkpoint import manifest
from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import CUT, FOLDER, Meta
from coca_train.checkpoint.recovery import TEMPORARY, TRASH, step_folders, verified
from coca_train.checkpoint.weights import Spec
from coca_train.engine.base import Engine
from coca_train.runtime import dist, durable

SPARE = 16 << 20  # [bytes] left free beside a checkpoint
Range = tuple[str, int, int]  # elements [start, stop) of a tensor, by its name


def open_folder(root: Path, step: int, size: int) -> str:
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


def body_of(step: int, engine: Engine, meta: Meta) -> dict[str, Any]:
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


def with_files(body: dict[str, Any], spec: Spec, files: list[Any], ranges: list[list[Range]]) -> dict[str, Any]:
    """The manifest's body with the files, and what each has. files, ranges: of each rank."""
    cut = _cut(ranges, spec)
    return body | {"files": files} | ({CUT: cut} if cut else {})


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


def publish(folder: Path, target: Path, body: dict[str, Any], lock: RunLock | None) -> str:
    """Rename the folder, whose shards are there, to what is a checkpoint; digest of its manifest. Raises OSError and
    LockedError.

    body: what the manifest says. lock: of this process.
    """
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
    """COLLECTIVE. Delete all but the newest `keep` verified checkpoints; names of the deleted.

    always: steps whose checkpoints stay as well. delete: called on rank 0 with each folder, which is none any more.

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
            return dist.broadcast_object(_deleted(rest, delete) if dist.is_main() else [])
    return []


def _deleted(folders: list[Path], delete: Callable[[Path], object]) -> list[str]:
    """Names of those that are gone; the disk may refuse to let go of one."""
    names = []
    with contextlib.suppress(OSError):
        for folder in folders:
            trash = folder.with_name(f"{TRASH}{folder.name}-{os.urandom(4).hex()}")
            os.rename(folder, trash)
            names.append(folder.name)
            delete(trash)
    return names
