"""No rank waits for ever: sections with a time limit, and the errors which mean that a peer died (no bug of ours)."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coca_train.runtime import dist
from coca_train.runtime.errors import PeerLost

TICK_S = 0.2
GRACE_S = 20.0
STDERR = 2  # the descriptor: sys.stderr may have been replaced by something without one
PEER_SIGNS = (
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


class Watchdog:
    """A thread that ends this process with exit code 76 when a section overruns, after dumping all stacks.

    DeepSpeed's process groups can wait 30 minutes for a hung peer whatever timeout one asks for
    (docs/operations.md). faulthandler's own timer, in C, stands behind the thread in case the interpreter
    itself is stuck; it can only exit with code 1.
    """

    def __init__(self) -> None:
        self._section: tuple[str, float] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watchdog":
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    @contextmanager
    def section(self, name: str, timeout_s: float) -> Iterator[None]:
        """What runs inside must end within timeout_s [seconds]. Sections do not nest."""
        assert self._section is None, f"{name} inside {self._section}"
        self._section = (name, time.monotonic() + timeout_s)
        faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=STDERR)
        try:
            yield
        finally:
            self._section = None
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            section = self._section
            if section is not None and time.monotonic() > section[1]:
                print(
                    f"E-RUN-14 rank {dist.rank()}: {section[0]} overran its time limit; this rank or another hangs. "
                    "Fix: run the same command again, with a larger engine.timeout_s if it was only slow",
                    file=sys.__stderr__,
                    flush=True,
                )
                faulthandler.dump_traceback(file=STDERR, all_threads=True)
                # Not sys.exit: the main thread hangs in a collective and would never see it, nor run any clean-up.
                os._exit(PeerLost.exit_code)


def peer_lost(error: BaseException) -> PeerLost | None:
    """The error to exit with (code 76) when `error` means that another rank is gone; else None."""
    torch_dist = sys.modules.get("torch.distributed")
    of_group = torch_dist is not None and isinstance(error, torch_dist.DistError)
    of_gloo = isinstance(error, RuntimeError) and any(sign in str(error) for sign in PEER_SIGNS)
    if dist.world_size() == 1 or not (of_group or of_gloo):
        return None
    return PeerLost(
        f"E-RUN-15 rank {dist.rank()}: another rank is gone ({str(error).splitlines()[0][:200]}). "
        "Fix: look at the first error above, then run the same command again"
    )
