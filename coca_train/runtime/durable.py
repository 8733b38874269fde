"""Durable file operations: what is written is on the disk, whole or not at all, before anyone relies on it."""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import StorageError
from coca_train.runtime.untrusted_io import JsonObject

SEAL = "sha256"  # the key under which a file has the digest of all else in it
CHUNK = 8 << 20  # [bytes]


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write everything, by os.write; raises OSError."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[:CHUNK]) :]


def create(path: Path) -> int:
    """Open a new file to write and return its descriptor; an existing one, or a symbolic link, is an OSError."""
    # O_EXCL and O_NOFOLLOW: other users of the folder must not be able to redirect a save elsewhere.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable, by whichever library."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path | str) -> None:
    """Make renames and new names inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Make a folder, and those above it that are missing, so that a power cut takes none of them away. Raises
    OSError."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with contextlib.suppress(FileExistsError):  # another process made it just now
        os.mkdir(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def flocked(folder: Path) -> Iterator[None]:
    """Hold the flock of a folder; without effect on file systems that have none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write and sync a file that must not exist."""
    descriptor = create(path)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` atomically: readers see the old bytes or the new. For one writer at a time.

    Synced before the rename, the folder after it: without the first a power cut leaves the new name with no bytes.
    """
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file by `replace` in a folder that need not exist; several processes take turns. Raises StorageError."""
    try:
        make_folders(path.parent)
        # Two evaluations may measure the same cell: without it one would publish what the other has half written.
        with flocked(path.parent):
            replace(path, data)
    except OSError as error:
        raise StorageError(
            f"E-REPORT-01 report {path}: cannot be written ({error.strerror}); a place to write is needed. "
            f"Fix: free some space or choose another folder"
        ) from error
    return path


def write_text(path: Path, text: str) -> Path:
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Mapping[str, object]) -> Path:
    return write_text(path, as_json(data))


def as_json(data: Mapping[str, object]) -> str:
    """Write JSON, which has no infinity: a number that is not finite becomes {"number": "inf"}, which read_json turns
    back."""
    return json.dumps(encode(data), indent=1) + "\n"


def read_json(path: Path) -> Any:
    """Read what `as_json` wrote. Raises OSError and ValueError."""
    return decode(untrusted_io.read_json(path))


def sealed(data: Mapping[str, object]) -> JsonObject:
    """Add a digest: what is read back and still agrees with it is what was written, type for type."""
    return {**data, SEAL: _digest(data)}


def unsealed(data: Mapping[str, Any]) -> JsonObject:
    """Return what was sealed. Raises ValueError where it was changed since, or has no seal."""
    content = {key: value for key, value in data.items() if key != SEAL}
    if data.get(SEAL) != _digest(content):
        raise ValueError("it was changed since it was written")
    return content


def _digest(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(encode(data), sort_keys=True).encode()).hexdigest()


def encode(value: object) -> object:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"number": str(value)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, list | tuple) else value


def decode(value: object) -> Any:
    if isinstance(value, dict):
        if set(value) == {"number"} and isinstance(value["number"], str):
            return float(value["number"])
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def read_at(descriptor: int, offset: int, size: int) -> bytearray:
    """Read exactly `size` bytes from `offset`; OSError when the file ends before."""
    # Into one buffer, and preadv may read less than requested: a second copy of a shard would not fit in memory.
    data = bytearray(size)
    done = 0
    while done < size:
        count = os.preadv(descriptor, [memoryview(data)[done : done + CHUNK]], offset + done)
        if count == 0:
            raise OSError(f"file ends at byte {offset + done}, {size - done} bytes short")
        done += count
    return data


def remove_tree(path: Path) -> None:
    """Delete a folder or a file; links are removed, never followed."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    for entry in sorted(os.listdir(path)):
        remove_tree(path / entry)
    os.rmdir(path)
