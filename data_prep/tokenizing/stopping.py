"""A polite request to stop the preparation: SIGTERM, SIGUSR1 or the first Ctrl-C. Handlers only set a flag.

coca_train.signals does the same for the ranks of a training.
"""

import signal
from types import FrameType, TracebackType

from coca_train.config.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Stop:
    """`with Stop() as stop:` and `stop.check()` wherever the work may end. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def __enter__(self) -> "Stop":
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._received == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signal.Signals(number)

    def check(self) -> None:
        """Raises Preempted or KeyboardInterrupt when a signal has come."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise Preempted(f"Asked to stop ({self._received.name}). The same command goes on where it stopped.")
