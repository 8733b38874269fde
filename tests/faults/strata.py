"""In a forked rank: which part of its work a command is at, and a kill at some moment of one of them.

A timeline is a list of [part, seconds]; a kill is {entry of a timeline, after_s, ranks: who kills, how: "one" (itself),
"all" (its group) or "worker" (a child), note: a file for the part that it struck}.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from coca_train.runtime import dist
from tests.processes import workers_of

WRITE_S = 0.002  # that a tensor takes longer to write: a save of these small models is then about as long as a step
Kill = dict[str, Any]
Timeline = list[tuple[str, float]]


class Timer:
    """The timeline of this process, and its end."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill, self._entries = kill, list[tuple[str, float]]()

    def now(self, part: str) -> None:
        """A part begins."""
        kill = self._kill
        if kill is not None and len(self._entries) == kill["entry"] and dist.rank() in kill["ranks"]:
            after = threading.Timer(kill["after_s"], self._strike)
            after.daemon = True
            after.start()
        self._entries.append((part, time.monotonic()))

    def timeline(self) -> Timeline:
        ends = [*(began for _, began in self._entries[1:]), time.monotonic()]
        return [(part, end - began) for (part, began), end in zip(self._entries, ends, strict=True)]

    def _strike(self) -> None:
        assert self._kill is not None
        how, victim = self._kill["how"], os.getpid()
        if how == "worker":
            victim = random.choice([*workers_of(victim), victim])
        Path(self._kill["note"]).write_text(self._entries[-1][0])
        os.killpg(0, signal.SIGKILL) if how == "all" else os.kill(victim, signal.SIGKILL)


def train(overrides: list[str], kill: Kill | None, pictures: bool = False) -> Timeline:
    """A training. Of two stages: training, save, background, save, training, …, stage border, training, …, report.

    The first "save" of each copies, the second deletes older ones; between them steps go on, the threads write, more
    slowly than they would, and rank 0 publishes. A stage border goes from the last save of a stage over its report to
    the first step of the next stage. pictures: all that the command does; else without what `leave_out` leaves out.
    """
    from coca_train import checkpoint
    from coca_train.checkpoint.commit import Saves
    from coca_train.checkpoint.format import ShardWriter
    from coca_train.training import run, stage
    from coca_train.training.saving import Saver
    from tests.faults import real
    from tests.stages.support import leave_out

    timer, borders = Timer(kill), list[int]()
    train_stage, run_stage = run.train_stage, stage.run_stage
    save, begin, prune, final_report = Saver.__call__, Saves.begin, checkpoint.prune, stage.final_report
    write = ShardWriter.write
    at_border = False

    def train_stage_(plan: Any, *arguments: Any, is_last: bool, **more: Any) -> Any:
        borders[:] = [] if is_last else [plan.stage.last_step]
        return train_stage(plan, *arguments, is_last=is_last, **more)

    def run_stage_(*arguments: Any, **more: Any) -> None:
        timer.now("training")
        run_stage(*arguments, **more)

    def save_(self: Any, step: int, due: bool, wait: bool) -> bool:
        nonlocal at_border
        at_border = step in borders
        if at_border:
            timer.now("stage border")
        return save(self, step, due, wait)

    def now(part: str) -> None:
        if not at_border:
            timer.now(part)

    def begin_(*arguments: Any) -> Any:
        now("save")
        error = begin(*arguments)
        now("background")
        return error

    def prune_(*arguments: Any) -> Any:
        now("save")
        names = prune(*arguments)
        now("training")
        return names

    def write_(*arguments: Any) -> None:
        time.sleep(WRITE_S)
        write(*arguments)

    def final_report_(*arguments: Any) -> Any:
        if not arguments[6]:
            timer.now("report")
        return final_report(*arguments)

    run.train_stage, stage.run_stage = train_stage_, run_stage_
    Saver.__call__, Saves.begin, checkpoint.prune, stage.final_report = save_, begin_, prune_, final_report_
    ShardWriter.write = write_
    if not pictures:
        leave_out()
    _begin_shortage()
    real.run(overrides)
    return timer.timeline()


def evaluate(overrides: list[str], kill: Kill | None) -> Timeline:
    """The grid of an evaluation and its page."""
    from coca_train.commands import main
    from coca_train.evaluation import pipeline

    timer = Timer(kill)
    run_grid = pipeline.run_grid

    def run_grid_(*arguments: Any) -> Any:
        timer.now("evaluation")
        return run_grid(*arguments)

    pipeline.run_grid = run_grid_
    _begin_shortage()
    _well(main(["evaluate", *overrides]))
    return timer.timeline()


def tokenize(overrides: list[str], kill: Kill | None) -> Timeline:
    """Raw text to a mixture."""
    from data_prep.__main__ import main

    timer = Timer(kill)
    timer.now("tokenizing")
    _begin_shortage()
    for verb in ("tokenize", "mix"):
        _well(main([verb, *overrides]))
    return timer.timeline()


def publish(verb: str, overrides: list[str], kill: Kill | None) -> Timeline:
    """An export, or an import."""
    from coca_train.commands import main

    timer = Timer(kill)
    timer.now(verb)
    _begin_shortage()
    _well(main([verb, *overrides]))
    return timer.timeline()


def _begin_shortage() -> None:
    """From now on calls count that shortage.c refuses: before, this harness has made its own."""
    if "LATER_SHORT_OF" in os.environ:
        os.environ["SHORT_OF"] = os.environ["LATER_SHORT_OF"]


def _well(code: int) -> None:
    """A command that does not end well ends the process."""
    if code:
        sys.exit(code)
