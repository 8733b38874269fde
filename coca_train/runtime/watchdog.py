"""No rank waits for ever: sections and waits with a time limit, a launcher that is gone, signals amid a wait."""

import contextlib
import faulthandler
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coca_train.runtime import launcher, leaving
from coca_train.runtime.errors import PeerLost

TICK_S = 0.2
GRACE_S = 20.0
LEAVE_S = 3.0  # for the main thread to leave by itself, with more to say
# What waits for other ranks by itself has the same limit; its own error says more, and should come first.
LATER_S = 2.0
FAREWELL = b"."  # of a rank that ends by itself: the others learn what they must in the usual ways

_running: "Watchdog | None" = None


class Watchdog:
    """A thread that ends this process with exit code 76 when a section or a wait overruns, after dumping all stacks.

    timeout_s: limit of a wait [seconds]. DeepSpeed's process groups can wait 30 minutes for a hung peer whatever
    timeout one asks for (docs/operations.md). faulthandler's own timer, in C, stands behind the thread in case the
    interpreter itself is stuck; it can only exit with code 1.

    It does more that a main thread cannot which waits in C: it sees that the launcher is gone, which counts as a
    SIGTERM; it leaves at once on a signal where that is due; and it ends this process when another rank is gone, which
    it sees on the `lines` to them.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._section: tuple[str, float] | None = None
        self._is_wait = False
        self._due: tuple[float, int] | None = None  # when to leave, for which signal
        self._lost: tuple[float, int] | None = None  # when to leave, for which rank
        self.lines: dict[socket.socket, int] = {}

    def __enter__(self) -> "Watchdog":
        global _running
        if launcher.process() is None:
            launcher.remember()
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Python writes the number of a signal there as it comes, while its handler waits for the main thread.
        self._wakeup = _wake(self._writer)
        self._outer, _running = _running, self
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _running
        _running = self._outer
        _wake(self._wakeup)
        os.close(self._writer)  # the thread reads the end of the pipe, and ends
        self._thread.join()
        os.close(self._reader)
        for line in self.lines:
            with contextlib.suppress(OSError), line:
                line.sendall(FAREWELL)

    @contextmanager
    def section(self, name: str, timeout_s: float) -> Iterator[None]:
        """What runs inside must end within timeout_s [seconds]. Sections do not nest."""
        assert self._section is None, f"{name} inside {self._section}"
        self._begin(name, timeout_s)
        try:
            yield
        finally:
            self._section = None
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, name: str, timeout_s: float) -> None:
        self._section = (name, time.monotonic() + timeout_s)
        faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=leaving.STDERR)

    @contextmanager
    def wait(self, name: str) -> Iterator[None]:
        """The same for what waits for other ranks, anywhere: inside a section that one has the say."""
        limit = self.timeout_s + LATER_S
        if self._section is None:
            self._is_wait = True
            try:
                with self.section(name, limit):
                    yield
            finally:
                self._is_wait = False
            return
        yield
        if self._is_wait:  # a wait of many parts is given the time anew for each
            self._begin(self._section[0], limit)

    def _watch(self) -> None:
        looks_for_launcher = True
        while self._heard():
            if looks_for_launcher and launcher.is_gone():
                looks_for_launcher = False
                leaving.tell(
                    f"E-RUN-28 rank {launcher.rank()}: its launcher, process {launcher.process()}, is gone; this rank "
                    "ends, and saves first where there is something to save. Fix: run the same command again"
                )
                if numbers := leaving.heeded(leaving.SIGNALS):
                    os.kill(os.getpid(), numbers[0])
            now, section, due = time.monotonic(), self._section, self._due
            if due is not None and now > due[0] and (leaving.is_due(due[1]) or self._is_wait):
                leaving.leave(due[1])
            if self._lost is not None and now > self._lost[0]:
                leaving.tell(
                    f"E-RUN-15 rank {launcher.rank()}: another rank is gone (the process of rank {self._lost[1]} has "
                    "ended). Fix: look at the first error above, then run the same command again"
                )
                leaving.let_go()
                os._exit(PeerLost.exit_code)
            if section is not None and now > section[1]:
                leaving.tell(
                    f"E-RUN-14 rank {launcher.rank()}: {section[0]} overran its time limit; this rank or another "
                    "hangs. Fix: run the same command again, with a larger engine.timeout_s if it was only slow"
                )
                faulthandler.dump_traceback(file=leaving.STDERR, all_threads=True)
                leaving.let_go()
                # Not sys.exit: the main thread hangs in a collective and would never see it, nor run any clean-up.
                os._exit(PeerLost.exit_code)

    def _heard(self) -> bool:
        """Wait a moment for news, and note the time when it must end this process; False at the end."""
        ready = select.select([self._reader, *self.lines], [], [], TICK_S)[0]
        for line in ready:
            if not isinstance(line, int):
                rank = self.lines.pop(line)
                if _is_broken(line) and self._lost is None:
                    self._lost = (time.monotonic() + LEAVE_S, rank)
        if self._reader in ready:
            numbers = os.read(self._reader, 64)
            if not numbers:
                return False
            for number in numbers:
                # Of a Ctrl-C Python raises an exception in the main thread, when it comes back from a wait.
                if leaving.is_due(number) or (number == signal.SIGINT and self._is_wait):
                    self._due = (time.monotonic() + LEAVE_S, number)
        return True


@contextmanager
def waiting(name: str) -> Iterator[None]:
    """What waits for other ranks must end in time, where a watchdog runs and there are others."""
    if _running is None or launcher.world_size() == 1:
        yield
        return
    with _running.wait(name):
        yield


def _wake(descriptor: int) -> int:
    """Have the numbers of signals written there; where they were before. Needed where C code waits for other ranks; and
    Python lets the main thread alone ask for it."""
    if launcher.world_size() == 1 or threading.current_thread() is not threading.main_thread():
        return -1
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def look_at(lines: dict[socket.socket, int]) -> None:
    """Connections to other ranks, and the rank at the other end: one that breaks without a farewell is lost."""
    if _running is not None:
        _running.lines = lines


def _is_broken(line: socket.socket) -> bool:
    """Of a line with something to read, which is its end."""
    with contextlib.suppress(OSError), line:
        return line.recv(1) != FAREWELL
    return True


# The pipe is shared by what is forked: its signals are none of ours.
os.register_at_fork(after_in_child=lambda: _running and signal.set_wakeup_fd(-1))
