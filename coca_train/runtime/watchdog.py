"""No rank waits for ever: a thread that ends this process when a section or a wait takes too long, or its peers are
gone."""

import contextlib
import faulthandler
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from coca_train.runtime import dist, shutdown
from coca_train.runtime.errors import PeerLost
from coca_train.runtime.threads import Thread

TICK_S = 0.2
GRACE_S = 20.0
LEAVE_S = 3.0  # for the main thread to leave by itself, with more to say
# What waits for other ranks by itself has the same limit; its own error says more, and should come first.
LATER_S = 2.0
PAUSES = (signal.SIGTSTP, signal.SIGCONT)
FAREWELL = b"."  # of a rank that ends by itself: the others learn what they must in the usual ways

Handler = Callable[[int, FrameType | None], object] | int | None  # of a signal

_running: "Watchdog | None" = None


class Watchdog:
    """A thread that ends this process with exit code 76 when a section or a wait overruns, after dumping all stacks.

    timeout_s: limit of a wait [seconds]. DeepSpeed's process groups can wait 30 minutes for a hung peer whatever
    timeout is configured (docs/operations.md). faulthandler's own timer, in C, backs up the thread in case the
    interpreter itself is stuck; it can only exit with code 1.

    It also does what a main thread that waits in C cannot: it treats a launcher that is gone as a SIGTERM; it leaves at
    once on a signal where that is due; it stops the clocks before it lets SIGTSTP stop this process (Ctrl-Z, a job that
    is suspended); and it ends this process when the connection to another rank breaks.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._section: tuple[str, float] | None = None
        self._is_wait = False
        self._clock = threading.RLock()  # is held while a section's clock is set, and while this process is stopped
        self._signal_due: tuple[float, int] | None = None  # when to leave, for which signal
        self._peer_lost: tuple[float, int] | None = None  # when to leave, for which rank
        self.connections: dict[socket.socket, int] = {}

    def __enter__(self) -> "Watchdog":
        global _running
        if shutdown.launcher_process() is None:
            shutdown.remember_launcher()
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Python writes the number of a signal there as it comes, while its handler waits for the main thread.
        self._wakeup = _set_wakeup(self._writer)
        self._handlers = _handle(dict.fromkeys(PAUSES, _leave_it_to_the_thread))
        self._outer, _running = _running, self
        self._outer_limit = dist.limit_waits(self.wait)
        self._thread = Thread(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        global _running
        _running = self._outer
        dist.limit_waits(self._outer_limit)
        _handle(self._handlers)
        _set_wakeup(self._wakeup)
        os.close(self._writer)  # the thread reads the end of the pipe, and ends
        self._thread.join()
        os.close(self._reader)
        for connection in self.connections:
            with contextlib.suppress(OSError), connection:
                connection.sendall(FAREWELL)

    @contextmanager
    def section(self, name: str, timeout_s: float) -> Iterator[None]:
        """Limit the time of a block to timeout_s [seconds]. Sections do not nest."""
        assert self._section is None, f"{name} inside {self._section}"
        self._start_clock(name, timeout_s)
        try:
            yield
        finally:
            with self._clock:
                self._section = None
                faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def wait(self, name: str) -> Iterator[None]:
        """Limit the time of a block that waits for other ranks. Inside a section the section's limit holds."""
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
        if self._is_wait:  # a wait of many parts has the whole time for each
            self._start_clock(self._section[0], limit)

    def _start_clock(self, name: str, timeout_s: float) -> None:
        with self._clock:
            self._section = (name, time.monotonic() + timeout_s)
            faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=shutdown.STDERR)

    def _pause(self) -> None:
        """Stop this process until somebody continues it; a section then has the time that it had left."""
        if _is_first_in_terminal():
            return
        with self._clock:
            began = time.monotonic()
            faulthandler.cancel_dump_traceback_later()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # takes effect before this thread goes on
            if self._section is not None:
                name, limit = self._section
                self._start_clock(name, limit - began)

    def _watch(self) -> None:
        has_launcher = True
        while self._listen():
            if has_launcher and shutdown.launcher_is_gone():
                has_launcher = False
                shutdown.say_launcher_is_gone()
                if numbers := shutdown.not_ignored(shutdown.SIGNALS):
                    os.kill(os.getpid(), numbers[0])
            now, section, due = time.monotonic(), self._section, self._signal_due
            if due is not None and now > due[0] and (shutdown.ends_process(due[1]) or self._is_wait):
                shutdown.leave(due[1])
            if self._peer_lost is not None and now > self._peer_lost[0]:
                _exit(
                    f"E-RUN-15 rank {dist.rank()}: another rank is gone (the process of rank {self._peer_lost[1]} has "
                    "ended). Fix: look at the first error above, then run the same command again"
                )
            if section is not None and now > section[1]:
                _exit(
                    f"E-RUN-14 rank {dist.rank()}: {section[0]} overran its time limit; this rank or another "
                    "hangs. Fix: run the same command again, with a larger engine.timeout_s if it was only slow",
                    dump_stacks=True,
                )

    def _listen(self) -> bool:
        """Wait a moment for signals and broken connections, and note when they must end this process; False at the
        end."""
        ready = select.select([self._reader, *self.connections], [], [], TICK_S)[0]
        for connection in ready:
            if not isinstance(connection, int):
                rank = self.connections.pop(connection)
                if _is_broken(connection) and self._peer_lost is None:
                    self._peer_lost = (time.monotonic() + LEAVE_S, rank)
        if self._reader in ready:
            numbers = os.read(self._reader, 64)
            if not numbers:
                return False
            # What came last counts: of a stop that was continued before this thread had its turn nothing is left.
            if [number for number in numbers if number in PAUSES][-1:] == [signal.SIGTSTP]:
                self._pause()
            for number in numbers:
                # Of a Ctrl-C Python raises an exception in the main thread, when it comes back from a wait.
                if shutdown.ends_process(number) or (number == signal.SIGINT and self._is_wait):
                    self._signal_due = (time.monotonic() + LEAVE_S, number)
        return True


def watch_connections(connections: dict[socket.socket, int]) -> None:
    """Have the running watchdog end this process when a connection breaks without a farewell. connections: to the rank
    at the other end."""
    if _running is not None:
        _running.connections = connections


def _exit(message: str, dump_stacks: bool = False) -> None:
    shutdown.write_stderr(message)
    if dump_stacks:
        faulthandler.dump_traceback(file=shutdown.STDERR, all_threads=True)
    shutdown.run_last_acts()
    # Not sys.exit: the main thread hangs in a collective and would never see it, nor run any clean-up.
    os._exit(PeerLost.exit_code)


def _set_wakeup(descriptor: int) -> int:
    """Have the numbers of signals written to a descriptor; return the earlier descriptor. Python allows it in the main
    thread only."""
    if threading.current_thread() is not threading.main_thread():
        return -1
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Of a signal whose number the watchdog's thread reads."""


def _handle(handlers: Mapping[signal.Signals, Handler]) -> dict[signal.Signals, Handler]:
    """Set what signals call, but for those that are ignored or that C code handles; return what they called. Python
    allows it in the main thread only."""
    before = {number: signal.getsignal(number) for number in handlers}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if before[number] not in (signal.SIG_IGN, None):
                signal.signal(number, handler)
    return before


def _is_first_in_terminal() -> bool:
    """Whether this process's group is the first of a terminal's session (tmux, ssh or docker exec with this command and
    no shell): nobody could continue it, so that the kernel lets SIGTSTP do nothing there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return os.getpgrp() == os.getsid(0)


def _is_broken(connection: socket.socket) -> bool:
    """Whether a connection with something to read has ended without a farewell."""
    with contextlib.suppress(OSError), connection:
        return connection.recv(1) != FAREWELL
    return True


def _leave_signals() -> None:
    """Of what was forked: the pipe is shared, its signals are none of ours, and it has no thread that stops it."""
    if _running is not None:
        signal.set_wakeup_fd(-1)
        _handle(_running._handlers)


os.register_at_fork(after_in_child=_leave_signals)
