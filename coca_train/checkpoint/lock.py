"""One writer per run directory: a lock file with a heartbeat, and a token that is checked before each publish."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coca_train.checkpoint.manifest import unused_name
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import LockedError, StorageError
from coca_train.runtime.processes import machine_id, start_time
from coca_train.runtime.threads import Thread, Worker
from coca_train.runtime.untrusted_io import JsonObject

HEARTBEAT_S = 30.0
# Three beats may be lost to a slow disk before a lock counts as abandoned.
STALE_AFTER_S = 4 * HEARTBEAT_S
LOOK_S = 0.5
NAME = "run.lock"


class RunLock:
    """Hold a run directory, all ranks together: `with RunLock(run_dir) as lock`.

    Rank 0 takes <run_dir>/run.lock (under flock on the directory, so that two take-overs of a stale lock
    cannot both win; written whole or not at all) and touches it every 30 s. A lock is stale when its process is dead
    on this machine, or when its heartbeat is 120 s old. Raises LockedError naming the holder.

    flock alone would not do: many shared file systems have none between hosts. A heartbeat alone would make a killed
    run wait two minutes before it goes on; so on the same machine the process itself is looked at, by its start time
    too, as its number may be in use again. What neither can see is a process that is frozen for two minutes and wakes
    up; that is what the token is for, which `check` compares before each publish.

    place: the option that says where the directory is, if it is another one than a run's.
    """

    def __init__(self, run_dir: Path, place: str = "") -> None:
        self._run_dir = run_dir
        self._place = place
        self._path = run_dir / NAME
        self._token = os.urandom(8).hex()
        self._made: list[Path] = []
        self._stop = threading.Event()
        self._heart: Thread | None = None

    def __enter__(self) -> "RunLock":
        dist.broadcast_from_rank0(self._take)
        if dist.is_main():
            self._heart = Thread(self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the run directory. From any thread."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
            try:
                with durable.flocked(self._run_dir):
                    if self._holder().get("token") == self._token:
                        # Not the lock of a process that took over while this one was frozen.
                        os.unlink(self._path)
                for folder in self._made:  # a start that was refused leaves nothing: those that are empty go
                    folder.rmdir()
            except OSError:
                pass  # a disk that fails now: the next start sees that our process is gone

    def check(self) -> None:
        """Rank 0, before a publish: raise LockedError when another process took over the run (this one was frozen,
        say), OSError where the lock cannot be read."""
        holder = self._holder()
        if holder.get("token") != self._token:
            raise self._locked(holder, "took over this run while we were out")

    def alone(self, action: Callable[[], None]) -> None:
        """COLLECTIVE, while the lock is held. Do work of minutes on rank 0.

        Rank 0 works in a thread, and all ranks repeatedly exchange whether it is done: so no collective waits for
        longer than a moment, engine.timeout_s does not apply, and the loss of a rank is noticed at once.
        """
        if dist.world_size() == 1:
            return action()
        with Worker() as worker:
            task = worker.submit(action) if dist.is_main() else None
            while not dist.all_reduce([float(task is None or task.is_done())], "min")[0]:
                time.sleep(LOOK_S)
            dist.broadcast_from_rank0(lambda: task and task.result())

    def _take(self) -> None:
        try:
            self._made = [folder for folder in (self._run_dir, *self._run_dir.parents) if not folder.exists()]
            durable.make_folders(self._run_dir)
            self._acquire()
        except OSError as error:
            raise StorageError(
                f"E-RUN-27 {self._run_dir}: cannot be read or written ({error}); a run needs its directory. "
                f"Fix: {f'{self._place}=<another>' if self._place else 'choose another run.root'}"
            ) from error

    def _acquire(self) -> None:
        with durable.flocked(self._run_dir):
            # Under the flock from the look at the holder to the new card: two that find the same stale lock would both
            # take it.
            if os.path.lexists(self._path):
                holder = self._holder()
                if self._alive(holder):
                    raise self._from_the_future(holder) or self._locked(holder, "works in it")
            card = {
                "pid": os.getpid(),
                "started": start_time(os.getpid()),
                "machine": machine_id(),
                "host": socket.gethostname(),
                "job": os.environ.get("SLURM_JOB_ID"),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                "token": self._token,
            }
            durable.replace(self._path, json.dumps(card).encode())

    def _holder(self) -> JsonObject:
        """Return the card of the process that holds the lock; {} where there is none. Raises OSError: a disk that fails
        is not a process."""
        try:
            return untrusted_io.read_object(self._path, 4096, follow=False)
        except (FileNotFoundError, ValueError):
            return {}

    def _alive(self, holder: JsonObject) -> bool:
        """Whether the holder of a lock may still write; an unreadable card counts by its age only."""
        pid = holder.get("pid")
        if holder.get("machine") == machine_id() and isinstance(pid, int):
            started = start_time(pid)
            if started is None or started != holder.get("started"):
                return False
        return self._file_age() < STALE_AFTER_S

    def _from_the_future(self, holder: JsonObject) -> LockedError | None:
        """Return the error of a heartbeat that is dated in the future, and so never ages; None: it is not.

        Its date is reset to now: a living holder keeps touching it, and the lock of a dead one is stale two minutes
        from now, whatever clock dated it.
        """
        ahead_s = -self._file_age()
        if ahead_s < STALE_AFTER_S:
            return None
        os.utime(self._path)
        return LockedError(
            f"E-RUN-08 {self._run_dir}: {_named(holder)} works in it; its last sign of life is dated {ahead_s:,.0f} s "
            f"in the future, so it counts from now on. Fix: run the same command again in {STALE_AFTER_S / 60:.0f} "
            f"minutes, or, when that process is gone, rm {self._path}"
        )

    def _file_age(self) -> float:
        """Return the seconds since the heartbeat by the clock of the file system, which all hosts share."""
        probe = self._run_dir / f".{NAME}.probe"
        durable.replace(probe, b"")
        now = probe.stat().st_mtime
        os.unlink(probe)
        return now - self._path.lstat().st_mtime

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                if self._holder().get("token") == self._token:
                    # Only while it is ours: a beat would keep another process's lock alive after that process has died.
                    os.utime(self._path)
            except OSError:
                continue  # a full or slow disk: the next beat tries again

    def _locked(self, holder: JsonObject, what: str) -> LockedError:
        other = f"{self._place}=<another>" if self._place else f"begin another run: {unused_name(self._run_dir)}"
        return LockedError(
            f"E-RUN-08 {self._run_dir}: {_named(holder)} {what}; one process writes a run. "
            f"Fix: wait for it, stop it, or {other}"
        )


def _named(holder: JsonObject) -> str:
    """Describe the holder of a lock."""
    if not holder:
        return "another process"
    job = f" (SLURM job {holder['job']})" if holder.get("job") else ""
    return f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}{job}"
