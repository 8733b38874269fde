"""What a command does while it says nothing: told when that takes longer than anybody likes to wait without a word."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coca_train.runtime import dist

AFTER_S = 3.0


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say `what` is being done, on rank 0, if it is not done soon."""
    if not dist.is_main():
        yield
        return
    # On a thread: an import or a first step says nothing itself.
    timer = threading.Timer(AFTER_S, dist.log, (f"wait      {what}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
