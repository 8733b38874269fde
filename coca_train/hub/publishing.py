"""Write a new folder atomically, and weights in shards."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from coca_train.checkpoint.format import NonFinite, ShardWriter, file_size
from coca_train.hub.architecture import Shapes
from coca_train.runtime import durable
from coca_train.runtime.errors import CheckpointError, StorageError, UserError
from coca_train.runtime.processes import namespace, start_time

LIMIT = 5_000_000_000  # [bytes] of one file of weights
SPARE = 64 << 20  # [bytes] left free on the disk


class Tensors(NamedTuple):
    """Tensors that are read one at a time."""

    shapes: Shapes
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]


class Shard(NamedTuple):
    """A file of tensors. record: its name, bytes and sha256."""

    tensors: list[str]
    record: dict[str, object]


@contextmanager
def new_folder(target: Path, n_bytes: int) -> Iterator[Path]:
    """Create a temporary folder next to `target`, rename it at the end of the `with`, remove it on any failure, and
    before that what a process that was killed has left of the same target.

    n_bytes: what will be written. Raises UserError E-IOP-11 when the target exists, StorageError E-IOP-12 when the disk
    is too small or fails.
    """
    if os.path.lexists(target):
        raise UserError(f"E-IOP-11 {target}: exists, and is not overwritten. Fix: choose another name, or remove it")
    begin = f".tmp-{target.name}-{hashlib.sha256(namespace().encode()).hexdigest()[:8]}-"
    folder = target.parent / f"{begin}{os.getpid()}-{start_time(os.getpid())}"
    try:
        durable.make_folders(target.parent)
        _remove_leftovers(target.parent, begin)
        free = os.statvfs(target.parent)
        if free.f_bavail * free.f_frsize < n_bytes + SPARE:
            raise OSError(errno.ENOSPC, f"{(n_bytes + SPARE) / 1e9:.1f} GB are needed")
        os.mkdir(folder)
        try:
            yield folder
            for path, _, _ in os.walk(folder):  # the names; bytes of files are synced where they are written
                durable.sync_folder(Path(path))
            if os.path.lexists(target):
                raise UserError(f"E-IOP-11 {target}: another process created it meanwhile. Fix: choose another name")
            os.rename(folder, target)
            durable.sync_folder(target.parent)
        except BaseException:
            if os.path.lexists(folder):
                durable.remove_tree(folder)
            raise
    except OSError as problem:
        raise StorageError(
            f"E-IOP-12 {target}: cannot be written ({problem.strerror or problem}); a disk with "
            f"{(n_bytes + SPARE) / 1e9:.1f} GB free is needed. Fix: free space, or choose another place"
        ) from problem


def _remove_leftovers(parent: Path, begin: str) -> None:
    """Remove temporary folders of this host whose processes are gone; begin: what their names begin with."""
    for name in os.listdir(parent):
        pid, _, started = name.removeprefix(begin).partition("-")
        if name.startswith(begin) and pid.isdigit() and start_time(int(pid)) != started:
            durable.remove_tree(parent / name)


def split_into_shards(shapes: Shapes, dtypes: dict[str, torch.dtype]) -> list[list[str]]:
    """Return the names of the tensors of each file, in order; a tensor larger than the limit has a file of its own."""
    parts: list[list[str]] = [[]]
    used = 0
    for name, shape in shapes.items():
        size = file_size({name: shape}, dtypes)
        if parts[-1] and used + size > LIMIT:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return parts


def write_shards(
    folder: Path,
    tensors: Tensors,
    file_name: Callable[[int, int], str] | str,
    metadata: dict[str, str],
    prefix: str = "",
) -> list[Shard]:
    """Write safetensors files, a tensor in memory at a time.

    file_name: of file i of n; a text: of a single file of any size. prefix: before tensor names. Raises OSError, and
    CheckpointError E-IOP-19 for a weight that is not finite.
    """
    shapes, dtypes, read = tensors
    shards, parts = [], [list(shapes)] if isinstance(file_name, str) else split_into_shards(shapes, dtypes)
    with tqdm(total=len(shapes), unit="tensor", disable=None, leave=False) as bar:
        for i, part in enumerate(parts):
            name = file_name if isinstance(file_name, str) else file_name(i, len(parts))
            spec = {prefix + key: shapes[key] for key in part}
            writer = ShardWriter(folder / name, spec, metadata, {prefix + key: dtypes[key] for key in part})
            try:
                for key in part:
                    try:
                        writer.write(prefix + key, read(key).to(dtypes[key]))
                    except NonFinite:
                        raise CheckpointError(
                            f"E-IOP-19 {key}: holds NaN or infinity as {str(dtypes[key]).removeprefix('torch.')}; "
                            "finite weights are needed. Fix: another dtype if they overflow, else download the weights "
                            "again"
                        ) from None
                    bar.update()
                shards.append(Shard(part, {"name": name, **writer.finish()}))
            finally:
                writer.close()
    return shards
