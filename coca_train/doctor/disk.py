"""How fast a folder takes what is written and synced, and what it has room for. Nothing is left there."""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.runtime import durable

PIECES = 6  # written and synced one after the other, so that ranks can be compared beyond the noise
SMALL = 4096  # [bytes]
MIB = 2**20


@dataclass(frozen=True)
class DiskState:
    """rates: of each piece, written and synced [bytes/s]. small_s: median of a sync of 4 KiB. free: [bytes].

    kept: what checkpoints of this run take already [bytes]. identity: of the folder, (inode, change time [ns]): the
    same on all hosts that share it. changed_s: how long ago that was, by this host's clock.
    """

    folder: str = ""
    problem: str = ""
    rates: list[float] = field(default_factory=list)
    small_s: float = 0.0
    free: int = 0
    kept: int = 0
    identity: tuple[int, int] = (0, 0)
    changed_s: float = 0.0


def existing(run_dir: Path) -> Path:
    """The folder itself, or the nearest above it that is there: nothing is made."""
    folder = run_dir.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def look(run_dir: Path) -> DiskState:
    """Before anything is written, which would change the folder's times."""
    folder = existing(run_dir)
    status, space = folder.stat(), os.statvfs(folder)
    kept = sum(file.stat().st_size for step in step_folders(run_dir / FOLDER) for file in step.iterdir())
    return DiskState(
        folder=str(folder),
        problem="" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written to",
        free=space.f_bavail * space.f_frsize,
        kept=kept,
        identity=(status.st_ino, status.st_ctime_ns),
        changed_s=time.time() - status.st_ctime,
    )


def write_speed(folder: Path, size: int, seconds: float) -> tuple[list[float], float]:
    """Rates of PIECES pieces of size / PIECES [bytes/s], fewer where time is up, and the median sync of 4 KiB [s].

    Into a file without a name: whatever happens to this process, nothing is left. Raises OSError.
    """
    end, piece = time.monotonic() + seconds, os.urandom(MIB)
    descriptor = _nameless(folder)
    try:
        rates = []
        for _ in range(PIECES):
            began = time.monotonic()
            n_written = 0
            while n_written < size // PIECES:
                durable.write_all(descriptor, piece)
                n_written += len(piece)
            os.fsync(descriptor)
            rates.append(n_written / max(time.monotonic() - began, 1e-9))
            if time.monotonic() > end:
                break
        small = []
        for _ in range(PIECES):
            began = time.monotonic()
            durable.write_all(descriptor, piece[:SMALL])
            os.fsync(descriptor)
            small.append(time.monotonic() - began)
            if time.monotonic() > end + 1:
                break
        return rates, statistics.median(small)
    finally:
        os.close(descriptor)


def _nameless(folder: Path) -> int:
    """Descriptor of a new file that no folder lists."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has them, nor every kernel
        descriptor, name = tempfile.mkstemp(prefix=".coca-train-doctor-", dir=folder)
        os.unlink(name)
        return descriptor
