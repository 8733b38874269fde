"""What the workers of test_pool do. Each of them imports this module, so it imports nothing heavy."""

import os
import signal
import time

from coca_train.runtime.errors import DataError
from data_prep.workers import map_ordered


class Double:
    """Twice a number, and which process did it; `started_ns` tells one instance from another."""

    def __init__(self, offset: int) -> None:
        self.offset, self.started_ns = offset, time.monotonic_ns()

    def __call__(self, number: int) -> tuple[int, int, int]:
        time.sleep(0.02 * (number % 3 == 0))  # later ones are ready first
        if number == 7:
            raise DataError("E-X-01 seven: is odd. Fix: none")
        if number == 8:
            raise ZeroDivisionError("eight")
        if number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * number + self.offset, os.getpid(), self.started_ns


class Unmakeable(Double):
    def __init__(self) -> None:
        raise DataError("E-X-02 never: not made. Fix: none")


class Echo:
    def __call__(self, data: bytes) -> bytes:
        return data


class Sleepless:
    """Made slowly, as where many processes share few cores."""

    def __init__(self) -> None:
        time.sleep(60)

    def __call__(self, number: int) -> int:
        return number


class Busy:
    """Never done, and deaf to polite requests."""

    def __call__(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))


if __name__ == "__main__":  # a parent to be killed: three workers, two of them at work, one waiting for it
    for _ in map_ordered(Busy, (), enumerate([600.0, 600.0, 0.0]), 3):
        pass
