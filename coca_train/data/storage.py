"""The few things done to files more than once: errors in words, locks, fsync, digests."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, TypedDict

from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import read_at
from coca_train.runtime.errors import DataError, StorageError

FULL_DIGEST_BYTES = 64 << 20
SAMPLE_BYTES = 1 << 16
N_SAMPLES = 64
STORAGE_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ENOLCK),
    *(errno.ENOSYS, errno.ENOTSUP),
}


class OpenFile:
    """A data file, open as long as this object lives. Raises OSError when opened.

    Never mapped: a page that cannot be had, of a file that was cut or a disk that fails, would end the process by
    SIGBUS and without a word.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._file = open(path, "rb")  # noqa: SIM115 (closed with this object)

    def size(self) -> int:
        """Return the size now [bytes]."""
        return os.fstat(self._file.fileno()).st_size

    def read(self, begin: int, end: int) -> bytearray:
        """Return bytes begin .. end - 1. DataError E-TOK-16 where they cannot be read any more."""
        try:
            return read_at(self._file.fileno(), begin, end - begin)
        except OSError as error:
            raise DataError(
                f"E-TOK-16 {self.path}: bytes {begin} to {end - 1} cannot be read while it is in use ({error}). Fix: "
                "restore the file, or check its disk, and start the same command again"
            ) from error


@contextmanager
def storage(where: str) -> Iterator[None]:
    """Report a full, read-only or failing disk in words (StorageError E-IO-01)."""
    try:
        yield
    except OSError as error:
        if error.errno not in STORAGE_ERRNO:
            raise
        raise StorageError(
            f"E-IO-01 {error.filename or where}: cannot write: {error.strerror}. Fix: free space, or choose another "
            "folder"
        ) from error


def open_locked(path: str) -> BinaryIO:
    """Open for writing, empty, and hold it alone; the lock ends with the process, however it ends.

    Raises DataError E-TOK-15 while another live process writes the same file.
    """
    file = open(path, "ab")  # noqa: SIM115 (the caller closes it, and with it the lock)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that held the lock before may have renamed or removed the file: then the lock just taken is on a
        # file without a name, and a third process can lock a new one of this name.
        mine = os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except BlockingIOError:
        mine = False
    if not mine:
        file.close()
        raise DataError(
            f"E-TOK-15 {path}: another process is writing this dataset. Fix: wait for it, or choose another prefix"
        )
    file.truncate(0)  # not by mode "wb": that would empty the file of the process that holds the lock
    return file


@contextmanager
def lock_and_wait(path: str | Path) -> Iterator[None]:
    """Hold a lock file, after waiting for the process that holds it. The kernel frees it when its process ends."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def flush_to_disk(file: BinaryIO | TextIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class Digest(TypedDict):
    """Size and SHA-256 of a file. of: all of it, or which samples."""

    bytes: int
    sha256: str
    of: str


def digest(path: str | Path) -> Digest:
    """Return size and SHA-256: of the whole file below 64 MiB, else of 64 evenly spaced blocks of 64 KiB.

    The first and the last block are always among them; the size is part of the record.
    """
    # Hashing a terabyte at every start would take an hour. Copies go wrong by being cut, by holes or by being another
    # file: size, ends and 62 samples between tell those; single bits are for the block sums.
    sha = hashlib.sha256()
    with os.fdopen(untrusted_io.open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < FULL_DIGEST_BYTES:
            while block := file.read(SAMPLE_BYTES):
                sha.update(block)
            return {"bytes": size, "sha256": sha.hexdigest(), "of": "all"}
        for i in range(N_SAMPLES):
            file.seek((size - SAMPLE_BYTES) * i // (N_SAMPLES - 1))
            sha.update(file.read(SAMPLE_BYTES))
    return {"bytes": size, "sha256": sha.hexdigest(), "of": f"{N_SAMPLES} blocks of {SAMPLE_BYTES} bytes"}
