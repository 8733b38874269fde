"""`python -m coca_train <verb>`, and the console script `coca-train`."""

import os
import signal
from types import FrameType
from typing import NoReturn


def entry() -> NoReturn:
    """Run the program; a Ctrl-C while it is imported ends it in one line."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _leave)
    from coca_train import commands

    signal.signal(signal.SIGINT, handler)
    commands.entry()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted. The same command starts again.\n")
    os._exit(130)


if __name__ == "__main__":
    entry()
