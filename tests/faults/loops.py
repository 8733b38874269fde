"""A small loop with signals and watchdog, for the forked ranks of the hang and stop tests."""

import os
import re
import signal
import time
from typing import Any

from coca_train.runtime import dist, watchdog
from coca_train.runtime.errors import PeerLost, Preempted
from coca_train.runtime.signals import StopRequest
from tests.engine.scenarios import batches, build


def hang(how: str) -> None:
    """Stop making progress, the way things do."""
    if how == "sleep":
        time.sleep(1000)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "interpreter lock":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        raise RuntimeError("a bug on one rank")


def loop(
    steps: int,
    stage: int = 1,
    timeout_s: float = 60.0,
    step_s: float = 0.0,
    fault: dict[str, Any] | None = None,
    signal_early: bool = False,
) -> int:
    """Steps done. fault: {step, rank, how}. Raises Preempted, PeerLost."""
    watchdog.GRACE_S = 2.0
    with StopRequest() as stop, watchdog.Watchdog() as dog:
        if signal_early and dist.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        built = build(zero_stage=stage)
        try:
            for step in range(steps):
                with dog.section("step", timeout_s):
                    if fault and (step, dist.rank()) == (fault["step"], fault["rank"]):
                        hang(fault["how"])
                    built.train_step(batches(step, 2), 1e-3)
                    time.sleep(step_s)
                if stop.requested():
                    raise Preempted(f"stopped after {step + 1} steps on {stop.received}")
        except RuntimeError as error:
            lost = watchdog.peer_lost(error)
            raise lost or error from None
        built.close()
    return steps


def is_peer_lost(message: str) -> bool:
    return isinstance(watchdog.peer_lost(RuntimeError(message)), PeerLost)
