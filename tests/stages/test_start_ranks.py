"""Rank 0 imports what a run begins from, the others wait; killed in the middle, the same command imports again."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coca_train.checkpoint import RunLock
from coca_train.engine.process import set_group_timeouts
from coca_train.hub import importing, parity
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.stages.support import LLAMA, STILL, run, weights


def slowly(overrides: list[str]) -> None:
    """One rank of the command, whose import takes longer than a collective may at that time."""
    alone, bring = RunLock.alone, importing.write_run

    def waiting(*arguments: Any) -> Path:
        time.sleep(3.5)
        return bring(*arguments)

    def bounded(self: RunLock, action: Callable[[], None]) -> None:
        set_group_timeouts(2)
        alone(self, action)
        set_group_timeouts(30)

    importing.write_run, RunLock.alone = waiting, bounded
    run(overrides)


def test_two_ranks_killed_while_importing(server: ForkServer, llama: Path, corpus: list[str], tmp_path: Path) -> None:
    """Killed in the middle of a write; then the same command, whose ranks wait for longer than engine.timeout_s."""
    words = [*real.TINY, "position=rope", *LLAMA, *STILL, "eval.max_tokens=48", *corpus, f"run.root={tmp_path}"]
    words += ["run.name=r", f"start.path={llama}"]
    run = tmp_path / "r"
    inject = {"root": str(run), "named": "write state-00000", "at": 0, "ranks": [0], "mode": "torn"}
    ended = server.run("tests.stages.support:run", {"overrides": words}, ranks=2, fail_fast_s=1.0, inject=inject)
    assert ended[0].code == -signal.SIGKILL and ended[1].code in (76, -signal.SIGKILL), ended[1].text
    assert list(run.glob(".tmp-start-*")) and not (run / "start").exists()
    ended = server.run("tests.stages.test_start_ranks:slowly", {"overrides": words}, ranks=2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].text + ended[1].text
    assert "start; the other ranks wait" in ended[0].text
    assert weights(run, 1) == weights(run / "start", 0)
    assert not real.leftovers(run)


def refused(overrides: list[str]) -> None:
    """One rank of the command, whose import fails on rank 0."""
    parity.BOUND = 1e-12
    run(overrides)


def test_both_ranks_end_when_the_import_fails(
    server: ForkServer, llama: Path, corpus: list[str], tmp_path: Path
) -> None:
    words = [*real.TINY, "position=rope", *LLAMA, *STILL, *corpus, f"run.root={tmp_path}", f"start.path={llama}"]
    ended = server.run("tests.stages.test_start_ranks:refused", {"overrides": [*words, "run.name=r"]}, ranks=2)
    assert [rank.code for rank in ended] == [4, 4], ended[0].text
    assert ended[0].text.count("E-IOP-13") == 1 and "Traceback" not in ended[0].text + ended[1].text
