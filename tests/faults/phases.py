"""A fault in a phase of the real command: a rank sends itself a signal where the phase begins."""

import functools
import importlib
import os
import signal
from typing import Any

from coca_train.runtime import dist
from tests.faults.fork_server import run_module

# Where each phase begins: a function that every rank calls, and at which of its calls.
PHASES = {
    "rendezvous": ("torch.distributed", "init_process_group", 1),
    "first gather": ("coca_train.runtime.dist", "broadcast_from_rank0", 1),
    "initialize": ("deepspeed", "initialize", 1),
    "weights": ("coca_train.checkpoint", "load", 1),
    "loop": ("coca_train.training.loop", "lr_at", 2),
    "validation": ("coca_train.training.stage", "validation_loss", 1),
    "save": ("coca_train.checkpoint.manifest", "describe_state", 1),
    "between copy and commit": ("coca_train.checkpoint.commit", "_await_shard", 1),
    "report": ("coca_train.training.ending", "_make", 1),
    "grid": ("coca_train.evaluation.grid", "on_all_ranks", 1),
}


def run(overrides: list[str], phase: str, event: str, rank: int, module: str = "coca_train") -> None:
    """One rank of `python -m module`; the victim sends itself the signal where the phase begins."""
    if dist.rank() == rank:
        owner, name, number = PHASES[phase]
        _before_call(importlib.import_module(owner), name, number, signal.Signals[event])
    run_module(module, overrides)


def _before_call(owner: Any, name: str, number: int, event: signal.Signals) -> None:
    whole, calls = getattr(owner, name), []

    @functools.wraps(whole)
    def struck(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == number:
            os.kill(os.getpid(), event)
        return whole(*arguments, **options)

    setattr(owner, name, struck)
