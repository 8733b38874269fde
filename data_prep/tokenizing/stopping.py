"""A polite request to stop the preparation."""

from coca_train.runtime.errors import Preempted
from coca_train.runtime.signals import StopRequest


class Stop(StopRequest):
    """`with Stop() as stop:` and `stop.check()` wherever the work may end. A second Ctrl-C interrupts at once."""

    def check(self) -> None:
        """Raises Preempted or KeyboardInterrupt when a signal has come."""
        if self.received == "SIGINT":
            raise KeyboardInterrupt
        if self.received is not None:
            raise Preempted(f"Asked to stop ({self.received}). The same command goes on where it stopped.")
