"""Leaving at once on a signal, where there is nothing to save.

That is while libraries are imported, ranks meet and an engine is built, and again when the model is saved and a report
is made.

What a training does instead while it trains is in `coca_train.runtime.signals`. A signal that was ignored when the
process began stays ignored: `nohup` says so of SIGHUP.
"""

import _thread
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from coca_train.runtime import launcher
from coca_train.runtime.errors import PeerLost, Preempted

# Sent by schedulers and launchers. Ctrl-C is the user's: where nothing is to be saved it stays Python's own.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
INTERRUPTED = 130
LET_GO_S = 3.0
STDERR = 2  # the descriptor: sys.stderr may have been replaced by something without one

_process = os.getpid()
_last_acts: list[Callable[[], None]] = []


def heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that are not ignored."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def begin() -> None:
    """From now on a signal ends this process with one line and exit code 75, but where `StopRequest` keeps it.

    For a program whose command goes on where it was, and at its very beginning: importing torch takes seconds.
    """
    global _process
    _process = os.getpid()
    launcher.remember()
    for number in heeded(SIGNALS):
        signal.signal(number, _handle)


def is_due(number: int) -> bool:
    """Whether the signal would end this process now."""
    return signal.getsignal(number) is _handle


@contextlib.contextmanager
def last_act(action: Callable[[], None]) -> Iterator[None]:
    """While the block runs, a process that leaves at once does this before: let go of what outlives it."""
    _last_acts.append(action)
    try:
        yield
    finally:
        _last_acts.remove(action)


def let_go() -> None:
    """The last acts. Not for long: a disk that does not answer holds nothing up."""
    if not _last_acts:
        return
    done = _thread.allocate_lock()
    done.acquire()

    def act() -> None:
        for action in _last_acts:
            with contextlib.suppress(Exception):
                action()
        done.release()

    # Not threading.Thread: the main thread may have been interrupted while it held the lock that starting one needs.
    _thread.start_new_thread(act, ())
    done.acquire(timeout=LET_GO_S)


def _handle(number: int, frame: FrameType | None) -> None:
    if os.getpid() == _process:  # a worker that was forked lets the main process decide
        leave(number)


def leave(number: int) -> None:
    """End this process now, from any thread.

    Not by an exception: libraries that are being imported catch more than they should, and a main thread that waits
    for other ranks in C would never see it.
    """
    let_go()
    if launcher.is_gone():  # the watchdog has said so
        os._exit(PeerLost.exit_code)
    rank = f"rank {os.environ.get('RANK')}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    text = f"{rank}stopped by {signal.Signals(number).name} with nothing to save; the same command goes on from there"
    tell(text)
    os._exit(INTERRUPTED if number == signal.SIGINT else Preempted.exit_code)


def tell(message: str) -> None:
    """A line to stderr, past buffers whose locks a thread may hold that does not move any more."""
    with contextlib.suppress(OSError):  # nobody may read it any more
        os.write(STDERR, f"{message}\n".encode())
