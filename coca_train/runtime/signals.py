"""A polite request to stop: SIGTERM, SIGUSR1 or the first Ctrl-C. Handlers only set a flag."""

import os
import signal
from types import FrameType
from typing import TypeVar

from coca_train.runtime import dist

Self = TypeVar("Self", bound="StopRequest")
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """`with StopRequest() as stop:` the loop asks `stop.requested()` once a step.

    A second Ctrl-C interrupts at once. Data workers that fork keep the handlers and the flag of their own
    copy; the main process decides.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._process = os.getpid()

    def __enter__(self: Self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    # An exception raised here could strike amid a collective or a save, on one rank only; a flag that all ranks compare
    # after the same step cannot.
    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == "SIGINT" and os.getpid() == self._process:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def requested(self) -> bool:
        """COLLECTIVE. Whether any rank was asked to stop: the same answer on all ranks."""
        return dist.all_reduce([float(self.received is not None)], "max")[0] > 0
