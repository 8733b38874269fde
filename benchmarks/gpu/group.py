"""A command and all processes that it starts, ended together: a training left on a GPU is in the way of the next."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

GRACE_S = 10.0  # from SIGTERM to SIGKILL: a training saves what it has
DEAD = ("Z", "X")  # states of proc(5): ended, and not yet waited for


def run(command: Sequence[str], limit_s: float, folder: Path, told: IO[str]) -> int | None:
    """Its exit code; None: it was not done within limit_s. However this ends, by an exception too, what the command has
    started ends with it. told: gets its standard output."""
    process = subprocess.Popen(command, cwd=folder, stdout=told, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End a process that leads a session, with all that is left of its group: SIGTERM, then SIGKILL."""
    try:
        _signal(process, signal.SIGTERM, GRACE_S)
    finally:  # a second Ctrl-C does not wait for the first
        _signal(process, signal.SIGKILL, GRACE_S)


def members(group: int) -> list[int]:
    """Processes of the group that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in DEAD:
                found.append(int(path.parent.name))
    return found


def follow_parent() -> None:
    """End the group of this process, which leads one, as soon as the process that started it is gone: one that was
    killed outright cannot do it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    if os.getpgid(0) == os.getpid():
        threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, so that what must be ended is ended at them too."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(process: "subprocess.Popen[str] | subprocess.Popen[bytes]", number: int, wait_s: float) -> None:
    """Send it to all who live, and wait until none does, at most for wait_s."""
    if members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    until = time.monotonic() + wait_s
    while process.poll() is None or members(process.pid):
        if time.monotonic() > until:
            return
        time.sleep(0.05)
