"""Trainings that a command starts, each a process of its own."""

import os
import signal
import subprocess
from types import FrameType

from coca_train.runtime import shutdown
from coca_train.runtime.errors import UserError
from coca_train.runtime.shutdown import INTERRUPTED


def refuse_torchrun(what: str, fix: str) -> None:
    """Raise UserError E-RUN-23 under torchrun, where each rank would start all trainings."""
    if "RANK" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"E-RUN-23 command line{what} starts its trainings itself, it cannot run under torchrun. Fix: {fix}"
        )


def run_child(command: list[str]) -> int:
    """Run to the end, passing requests to stop on, so that the child saves; its exit code, never 0 after a Ctrl-C."""
    received: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    # Before there is a child: one that came in between would end this process, and leave the child alone.
    before = {number: signal.signal(number, pass_on) for number in shutdown.not_ignored(shutdown.SIGNALS)}
    child, interrupted = subprocess.Popen(command), 0
    for number in received:
        child.send_signal(number)
    try:
        while True:
            try:
                code = child.wait()
                return (code if code >= 0 else 128 - code) or interrupted  # killed by a signal, as a shell reports it
            except KeyboardInterrupt:  # the terminal has told the child too; it saves and ends
                interrupted = INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
