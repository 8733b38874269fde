"""Trainings that a command starts, each a process of its own."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from coca_train.runtime import shutdown
from coca_train.runtime.errors import Preempted, UserError
from coca_train.runtime.shutdown import INTERRUPTED

POLL_S, WATCH_S = 0.2, 60.0


def refuse_torchrun(what: str, fix: str) -> None:
    """Raise UserError E-RUN-23 under torchrun, where each rank would start all trainings."""
    if "RANK" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"E-RUN-23 command line{what} starts its trainings itself, it cannot run under torchrun. Fix: {fix}"
        )


def _ours() -> dict[str, str]:
    """The environment variable by which a training notices that this process is gone, and saves and ends."""
    return {shutdown.STARTED_BY: str(os.getpid())}


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
    child, interrupted = subprocess.Popen(command, env=os.environ | _ours()), 0
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


class Job(NamedTuple):
    """Commands to be run one after the other. log: the file that their output is appended to."""

    name: str
    commands: Sequence[Sequence[str]]
    log: Path


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    environment: Mapping[str, str],
    done: Callable[[Job], None],
    watch: Callable[[Sequence[Job]], None],
    lost: Mapping[int, Callable[[Job], None]],
) -> tuple[int, Job | None]:
    """Run jobs, so many at once, passing requests to stop on.

    done: called after each. watch: called every WATCH_S seconds with those that run.
    lost: by exit code, what is called where a job ended with it; the others go on. Returns 0, or the first other exit
    code and whose it was (nobody's where this process was asked to stop); then no further job is begun, and those that
    run are waited for.
    """
    waiting, running = deque(jobs), dict[subprocess.Popen[bytes], tuple[Job, int]]()
    failed: tuple[int, Job | None] = (0, None)
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for child in running:
            child.send_signal(number)

    def start(job: Job, number: int) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            child = subprocess.Popen(
                job.commands[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment, **_ours()},
            )
        running[child] = (job, number)
        for signal_number in received:  # one that came in between
            child.send_signal(signal_number)

    before = {number: signal.signal(number, pass_on) for number in shutdown.not_ignored(shutdown.SIGNALS)}
    watched = time.monotonic()
    try:
        while running or (waiting and not failed[0]):
            try:
                while waiting and len(running) < at_once and not failed[0] and not received:
                    start(waiting.popleft(), 0)
                for child, (job, number) in list(running.items()):
                    code = child.poll()
                    if code is None:
                        continue
                    del running[child]
                    if -code in received:  # ended by the signal, before it could save
                        code = Preempted.exit_code
                    if code in lost:
                        lost[code](job)
                    elif code:
                        failed = failed if failed[0] else (code if code > 0 else 128 - code, job)
                    elif number + 1 < len(job.commands):
                        if not received and failed[0] != INTERRUPTED:
                            start(job, number + 1)
                    else:
                        done(job)
                if received and not running:
                    break
                if time.monotonic() - watched > WATCH_S:
                    watched = time.monotonic()
                    watch([job for job, _ in running.values()])
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                if failed[0] != INTERRUPTED:
                    n = len(running)
                    shutdown.write_stderr(f"Interrupted: waiting for {n} training{'s' * (n != 1)} to save and end")
                failed = (INTERRUPTED, None)
                for child in running:  # a terminal has sent it to them as well, `kill` has not
                    child.terminate()
        return (Preempted.exit_code, None) if received and failed[0] in (0, Preempted.exit_code) else failed
    finally:
        for child in running:  # after an error of ours, none of them is left alone
            child.terminate()
        for child in running:
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
