"""A polite request to stop: SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or the first Ctrl-C. Handlers only set a flag."""

import os
import signal
from types import FrameType
from typing import TypeVar

from coca_train.runtime import dist, leaving

Self = TypeVar("Self", bound="StopRequest")
SIGNALS = (*leaving.SIGNALS, signal.SIGINT)


class StopRequest:
    """`with StopRequest() as stop:` the loop asks `stop.requested()` once a step.

    A second Ctrl-C interrupts at once. Data workers that fork keep the handlers and the flag of their own
    copy; the main process decides. What came too late to be asked for is answered after the block, by the handlers
    before. Signals that are ignored stay so.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._process = os.getpid()
        self._answered = False

    def __enter__(self: Self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in leaving.heeded(SIGNALS)}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received is not None and not self._answered and kind is None:
            signal.raise_signal(signal.Signals[self.received])

    # An exception raised here could strike amid a collective or a save, on one rank only; a flag that all ranks compare
    # after the same step cannot.
    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == "SIGINT" and os.getpid() == self._process:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def requested(self) -> bool:
        """COLLECTIVE. Whether any rank was asked to stop: the same answer on all ranks."""
        self._answered = dist.all_reduce([float(self.received is not None)], "max")[0] > 0
        return self._answered
