"""A folder appears under its name whole and checked, or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coca_train.runtime import durable
from coca_train.runtime.errors import StorageError, UserError

SPARE = 64 << 20  # [bytes] left free beside what is written


@contextmanager
def building(target: Path, n_bytes: int) -> Iterator[Path]:
    """A new folder beside `target`, renamed to it at the end of the `with`; removed when anything goes wrong in it.

    n_bytes: what will be written. Raises UserError E-IOP-11 when the target exists, StorageError E-IOP-12 when the disk
    is too small or fails.
    """
    if os.path.lexists(target):
        raise UserError(f"E-IOP-11 {target}: exists; nothing is written over. Fix: choose another name, or remove it")
    folder = target.parent / f".tmp-{target.name}-{os.urandom(4).hex()}"
    try:
        os.makedirs(target.parent, exist_ok=True)
        free = os.statvfs(target.parent)
        if free.f_bavail * free.f_frsize < n_bytes + SPARE:
            raise OSError(errno.ENOSPC, f"{(n_bytes + SPARE) / 1e9:.1f} GB are needed")
        os.mkdir(folder)
        try:
            yield folder
            _sync(folder)
            if os.path.lexists(target):
                raise UserError(f"E-IOP-11 {target}: was made by another process meanwhile. Fix: choose another name")
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


def _sync(folder: Path) -> None:
    """Make all names below a folder durable; the files' bytes are synced where they are written."""
    for path, _, _ in os.walk(folder):
        durable.sync_folder(Path(path))
