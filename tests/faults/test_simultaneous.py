"""The same command several times at once: one process trains, the others leave in one line, whoever is killed."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from coca_train.runtime.durable import write_json
from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank, values
from tests.stages.support import steps

LOCKED = r"E-RUN-08 .*: process \d+ on \S+ since .* works in it; one process writes a run\. Fix: .*\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    return [*real.TINY, *real.prepare(folder), "engine.dtype=fp32", "train.max_steps=6", "run.name=r"]


def starts(server: ForkServer, words: list[str], root: Path, n: int, **options: Any) -> list[Rank]:
    job = {"overrides": [*words, f"run.root={root}"]}
    return server.run(
        "tests.stages.support:run", job, ranks=n, launcher=False, fail_fast_s=120, timeout_s=200, **options
    )


def refused(ended: Rank) -> bool:
    return ended.code == 6 and re.fullmatch(LOCKED, ended.text) is not None


@pytest.mark.parametrize("n", slow_unless([2], [2, 3, 4]))
def test_one_of_several_trains(server: ForkServer, words: list[str], tmp_path: Path, n: int) -> None:
    ended = starts(server, words, tmp_path, n)
    winners = [rank for rank in ended if rank.code == 0]
    assert len(winners) == 1, [rank.text for rank in ended]
    assert all(refused(rank) for rank in ended if rank not in winners), [rank.text for rank in ended]
    assert [record["step"] for record in steps(tmp_path / "r")] == list(range(1, 7))
    assert not real.leftovers(tmp_path / "r")


MOMENTS = {
    "before its lock is there": ("replace .run.lock.new", "kill"),
    "when its lock is there": ("replace .run.lock.new", "kill_after"),
    "while it writes what the run is": ("write .run.json.new", "torn"),
    "in its first save": ("write state-00000", "torn"),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_first_is_killed(server: ForkServer, words: list[str], tmp_path: Path, moment: str) -> None:
    """Whoever takes the lock in its place is killed there too; the others are refused; the next start does it all."""
    named, mode = MOMENTS[moment]
    killing = {"root": str(tmp_path / "r"), "at": 0, "named": named, "mode": mode}
    ended = starts(server, words, tmp_path, 3, inject=killing)
    assert all(rank.code == -signal.SIGKILL or refused(rank) for rank in ended), [rank.text for rank in ended]
    assert not all(rank.code == 6 for rank in ended)
    ended = starts(server, words, tmp_path, 2)
    assert sorted(rank.code for rank in ended) == [0, 6], [rank.text for rank in ended]
    assert not real.leftovers(tmp_path / "r")


def write_often(path: str, n: int) -> None:
    """In a forked process: one file again and again, and it is always whole."""
    for number in range(n):
        write_json(Path(path), {"numbers": [number] * 5000})
        assert len(set(json.loads(Path(path).read_text())["numbers"])) == 1


def test_evaluations_may_measure_the_same_cells(server: ForkServer, tmp_path: Path) -> None:
    """Their files are written by one after the other."""
    job = {"path": str(tmp_path / "cells" / "x.json"), "n": 15}
    values(server.run("tests.faults.test_simultaneous:write_often", job, ranks=3, launcher=False))
