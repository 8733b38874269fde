"""How a process ends before its work is done: a signal, a launcher that is gone, another rank that is gone.

While a training has something to save, `StopRequest` turns signals into a flag that all ranks compare after the same
step. Everywhere else (imports, the meeting of the ranks, the final report) there is nothing to save, and after `begin`
a signal ends the process at once. A signal that was ignored when the process began stays ignored, as `nohup` does with
SIGHUP. `coca_train.runtime.watchdog` is the thread that acts where the main thread waits in C and cannot.
"""

import _thread
import contextlib
import hmac
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeVar

from coca_train.runtime import dist
from coca_train.runtime.errors import PeerLost, Preempted

# Sent by schedulers and launchers. Ctrl-C is the user's: where nothing is to be saved it stays Python's own.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
INTERRUPTED = 130  # a shell's exit code of Ctrl-C
LET_GO_S = 3.0
STDERR = 2  # the descriptor: sys.stderr may have been replaced by something without one

# What torchrun, deepspeed's launcher and a step of Slurm leave in the environment of their ranks. RANK alone is no
# sign: a rank that was started manually, in the background of a shell, continues when the shell ends.
LAUNCHER_MARKS = ("TORCHELASTIC_RUN_ID", "CROSS_RANK", "SLURM_STEP_ID")
STARTED_BY = "COCA_TRAIN_STARTED_BY"  # process id of the command of ours that starts a training, in its environment

TOKEN_BYTES = 16
ACCEPTED = b"+"
CONNECT_S = 5.0
ANSWER_S = 60.0  # rank 0 accepts one connection after the other

# What gloo's errors say when another rank is gone; torch gives them no class of their own.
PEER_LOST_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "timed out",
    "Socket Timeout",
    "NCCL communicator was aborted",
    "remote process exited",
    "failed to recv",
    "failed to send",
)

Stop = TypeVar("Stop", bound="StopRequest")

_process = os.getpid()
_launcher: int | None = None
_is_of_command = False  # whether that is a command of ours, such as compare
_last_acts: list[Callable[[], None]] = []


# ---- a signal while there is nothing to save


def begin() -> None:
    """Let a signal end this process with one line and exit code 75, except where `StopRequest` keeps it.

    For a program that continues when its command is run again. Call it first: importing torch takes seconds.
    """
    global _process
    _process = os.getpid()
    remember_launcher()
    for number in not_ignored(SIGNALS):
        signal.signal(number, _leave_main_process)


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that this process does not ignore."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def ends_process(number: int) -> bool:
    """Whether the signal would end this process now."""
    return signal.getsignal(number) is _leave_main_process


def _leave_main_process(number: int, frame: FrameType | None) -> None:
    if os.getpid() == _process:  # a worker that was forked lets the main process decide
        leave(number)


def leave(number: int) -> None:
    """End this process because of a signal, from any thread.

    Not by an exception: libraries that are being imported catch more than they should, and a main thread that waits
    for other ranks in C would never see it.
    """
    run_last_acts()
    if launcher_is_gone():  # the watchdog has said so
        os._exit(PeerLost.exit_code)
    rank = f"rank {os.environ.get('RANK')}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    write_stderr(
        f"{rank}stopped by {signal.Signals(number).name} with nothing to save; the same command goes on from there"
    )
    os._exit(INTERRUPTED if number == signal.SIGINT else Preempted.exit_code)


@contextlib.contextmanager
def last_act(action: Callable[[], None]) -> Iterator[None]:
    """Have a process that leaves at once during the block call `action` first, to release what outlives it."""
    _last_acts.append(action)
    try:
        yield
    finally:
        _last_acts.remove(action)


def run_last_acts() -> None:
    """Call the last acts, for LET_GO_S at most: a disk that does not answer holds nothing up."""
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


def write_stderr(message: str) -> None:
    """Write a line to stderr, past buffers whose locks a stuck thread may hold."""
    with contextlib.suppress(OSError):  # its reader may be gone
        os.write(STDERR, f"{message}\n".encode())


# ---- a signal while a training has something to save


class StopRequest:
    """Keep SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and the first Ctrl-C as a flag: `with StopRequest() as stop`, and call
    `stop.requested()` once a step.

    A second Ctrl-C interrupts at once. Data workers that fork keep the handlers and a copy of the flag; the main
    process decides. A signal that came after the last call is raised again after the block, for the earlier handlers.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._interrupted = False
        self._process = os.getpid()
        self._answered = False

    def __enter__(self: Stop) -> Stop:
        self._before = {each: signal.signal(each, self._note) for each in not_ignored((*SIGNALS, signal.SIGINT))}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received is not None and not self._answered and kind is None:
            signal.raise_signal(signal.Signals[self.received])

    # An exception raised here could strike amid a collective or a save, on one rank only; a flag that all ranks compare
    # after the same step cannot.
    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted and os.getpid() == self._process:
            raise KeyboardInterrupt
        self._interrupted |= number == signal.SIGINT  # kept: a command passes its Ctrl-C on as SIGTERM, too
        self.received = signal.Signals(number).name

    def requested(self) -> bool:
        """COLLECTIVE. Whether any rank received a signal to stop: the same on all ranks."""
        self._answered = dist.all_reduce([float(self.received is not None)], "max")[0] > 0
        return self._answered


# ---- a launcher that is gone


def remember_launcher() -> None:
    """Note the process that started this one, if it is a launcher. Call it early: one that is gone by then is not
    noticed."""
    global _launcher, _is_of_command
    of_launcher = "RANK" in os.environ and any(mark in os.environ for mark in LAUNCHER_MARKS)
    parent = os.getppid()
    _is_of_command = os.environ.get(STARTED_BY) == str(parent)
    _launcher = parent if of_launcher or _is_of_command else None


def launcher_process() -> int | None:
    """Return the launcher's process id; None: there is no launcher."""
    return _launcher


def say_launcher_is_gone() -> None:
    """Write what ends this process, and what to do."""
    ends = "ends, and saves first where there is something to save. Fix: run"
    if _is_of_command:
        started = f"the command that started this training, process {_launcher}, is gone; it"
        write_stderr(f"E-RUN-28 {started} {ends} that command again")
    else:
        rank = f"rank {dist.rank()}: its launcher, process {_launcher}, is gone; this rank"
        write_stderr(f"E-RUN-28 {rank} {ends} the same command again")


def launcher_is_gone() -> bool:
    """Whether there was a launcher, and its process has ended.

    Checked repeatedly, instead of having the kernel send a signal (PR_SET_PDEATHSIG): that comes when the *thread* ends
    which forked, though its process may be well, and never when the process was gone before the request.
    """
    return _launcher is not None and os.getppid() != _launcher


# ---- another rank that is gone


def peer_lost(error: BaseException) -> PeerLost | None:
    """Return the error to exit with (code 76) when `error` means that another rank is gone; else None."""
    torch_dist = sys.modules.get("torch.distributed")
    of_group = torch_dist is not None and isinstance(error, torch_dist.DistError)
    of_gloo = isinstance(error, RuntimeError) and any(sign in str(error) for sign in PEER_LOST_SIGNS)
    if dist.world_size() == 1 or not (of_group or of_gloo):
        return None
    return PeerLost(
        f"E-RUN-15 rank {dist.rank()}: another rank is gone ({first_sentence(error)}). "
        "Fix: look at the first error above, then run the same command again"
    )


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error, without the C++ source file that raised it."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S*:\d+\] ", "", line).partition(". ")[0][:200]


def connect_ranks() -> dict[socket.socket, int]:
    """COLLECTIVE. Open a connection from every rank to rank 0, on which nothing is sent; return this rank's
    connections, each with the rank at its other end. For `watchdog.watch_connections`.

    The loss of a rank that is killed while others wait at a store (DeepSpeed creates its groups there) or in NCCL would
    be noticed only when engine.timeout_s is over; the kernel closes the connections of a process however it ends. A
    rank that cannot reach rank 0 has none, and waits as long as it would without.
    """
    host = os.environ["MASTER_ADDR"]
    with contextlib.ExitStack() as stack:
        server, offer = None, (0, b"")
        if dist.is_main():
            with contextlib.suppress(OSError):
                # At the address of the cluster's network only.
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                server = stack.enter_context(socket.create_server((host, 0), family=family, backlog=dist.world_size()))
                server.settimeout(CONNECT_S)
                offer = (server.getsockname()[1], os.urandom(TOKEN_BYTES))
        port, token = dist.broadcast_object(offer)
        connections: dict[socket.socket, int] = {}
        if not dist.is_main() and port:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, port), timeout=CONNECT_S)
                connection.sendall(token + dist.rank().to_bytes(4, "big"))
                connections[connection] = 0
        (n_connections,) = dist.all_reduce([float(len(connections))])
        if server is not None:
            return _accept(server, token, int(n_connections))
        return {connection: rank for connection, rank in connections.items() if _is_accepted(connection)}


def _accept(server: socket.socket, token: bytes, n_connections: int) -> dict[socket.socket, int]:
    """Rank 0: accept the connections in the server's queue that send the token; drop all others."""
    connections: dict[socket.socket, int] = {}
    with contextlib.suppress(TimeoutError):
        while len(connections) < n_connections:
            connection = server.accept()[0]
            with contextlib.suppress(OSError):
                connection.settimeout(CONNECT_S)
                greeting = connection.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
                if hmac.compare_digest(greeting[:TOKEN_BYTES], token):
                    connection.sendall(ACCEPTED)
                    connections[connection] = int.from_bytes(greeting[TOKEN_BYTES:], "big")
    return connections


def _is_accepted(connection: socket.socket) -> bool:
    """Return on another rank whether rank 0 has accepted the connection; one that it has not says nothing when it
    breaks."""
    with contextlib.suppress(OSError):
        connection.settimeout(ANSWER_S)
        return connection.recv(len(ACCEPTED)) == ACCEPTED
    return False
