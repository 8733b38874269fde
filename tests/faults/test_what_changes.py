"""What changes around a run, while it is at work or between a kill and the next start: clock, ZeRO stage, data."""

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import KilledRuns
from tests.stages.support import run, saved

pytestmark = pytest.mark.slow
DAY_S = 86400.0
COMMAND = "tests.faults.test_what_changes"


@pytest.fixture(scope="module")
def runs(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> KilledRuns:
    folder = tmp_path_factory.mktemp("changes")
    words = [*real.TINY, *real.prepare(folder), "engine.dtype=fp32", "tracking.progress_bar=true"]
    return KilledRuns(server, words, folder / "runs")


def killed_in_a_save(runs: KilledRuns, *words: str, group: bool = False) -> None:
    """Rank 1, or all with it, in a save that is not the first: that one stays."""
    runs.fresh()
    writes = sum(name.startswith("write state-00001") for name in runs.operations[1])
    inject = {"root": str(runs.run_dir), "ranks": [1], "named": "write state-00001", "at": writes // 2, "group": group}
    ended = runs.launch(*words, inject=inject)
    assert ended[1].code == -signal.SIGKILL, ended[1].text
    assert saved(runs.run_dir) and saved(runs.run_dir)[-1] < 10


def run_with_the_clock_set_back(overrides: list[str], back_s: float) -> None:
    """A rank whose clock is back_s behind, and once more so from its hundredth look on."""
    now, looks = time.time, itertools.count()
    time.time = lambda: now() - back_s * (1 + (next(looks) >= 100))
    run(overrides)


def test_the_clock_goes_back(runs: KilledRuns) -> None:
    """By a day between the launches, and by another in the second: what the first left is dated tomorrow, and later."""
    killed_in_a_save(runs, group=True)
    later = time.time() + DAY_S
    for path in [runs.run_dir, *runs.run_dir.rglob("*")]:
        os.utime(path, (later, later))
    assert (runs.run_dir / "run.lock").stat().st_mtime > time.time()
    arguments = {"overrides": [*runs.words, "run.name=r"], "back_s": DAY_S}
    ended = runs.server.run(f"{COMMAND}:run_with_the_clock_set_back", arguments, ranks=2)
    assert [rank.code for rank in ended] == [0, 0], ended[0].text
    assert runs.left() == runs.whole and not real.leftovers(runs.run_dir)
    assert "left 0:0" in ended[0].text and "left -" not in ended[0].text


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(range(4), 2)))
def test_another_zero_stage_after_a_kill(runs: KilledRuns, old: int, new: int) -> None:
    """The same batches, the same losses within rounding; what is changed is said."""
    killed_in_a_save(runs, f"engine.zero_stage={old}")
    ended = runs.launch(f"engine.zero_stage={new}")
    assert [rank.code for rank in ended] == [0, 0], ended[0].text
    changed = f"CHANGED since this run began: engine.zero_stage {old} -> {new}\n"
    assert changed in ended[0].text, ended[0].text
    step, _, losses = real.final_state(runs.run_dir)
    _, _, whole = runs.whole
    assert step == 10 and len(losses) == len(whole)
    for (at, (loss, digest)), (at_whole, (loss_whole, digest_whole)) in zip(losses, whole, strict=True):
        assert (at, digest) == (at_whole, digest_whole)
        assert abs(loss - loss_whole) < 1e-5


def run_and_cut(overrides: list[str], path: str, step: int, rank: int) -> None:
    """A rank of the command; one of them cuts a data file while they do a step."""
    from coca_train.runtime import dist
    from coca_train.training import loop

    lr_at, calls = loop.lr_at, itertools.count(1)

    def cutting(*arguments: Any) -> float:
        if next(calls) == step and dist.rank() == rank:
            os.truncate(path, 100)
        return lr_at(*arguments)

    loop.lr_at = cutting
    run(overrides)


def run_and_rewrite(overrides: list[str], path: str, step: int) -> None:
    """A rank of the command; rank 0 changes a byte of a data file in a step, with size and time as before."""
    from coca_train.runtime import dist
    from coca_train.training import loop

    lr_at, calls = loop.lr_at, itertools.count(1)

    def rewriting(*arguments: Any) -> float:
        if next(calls) == step and dist.rank() == 0:
            status, content = os.stat(path), bytearray(Path(path).read_bytes())
            content[-1] ^= 1
            with open(path, "r+b") as file:
                file.write(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return lr_at(*arguments)

    loop.lr_at = rewriting
    run(overrides)


def test_data_that_is_rewritten_while_it_is_read(runs: KilledRuns) -> None:
    """Seen before the last save at the latest, whichever file it is; restored, the run goes on as it would have."""
    folder = next(Path(word.partition("=")[2]) for word in runs.words if word.startswith("data.dir="))
    for path in sorted(folder.glob("*_train.*")):
        if path.suffix not in (".bin", ".idx"):
            continue
        runs.fresh()
        content, status = path.read_bytes(), path.stat()
        try:
            arguments = {"overrides": [*runs.words, "run.name=r"], "path": str(path), "step": 5}
            ended = runs.server.run(f"{COMMAND}:run_and_rewrite", arguments, ranks=2)
        finally:
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert [rank.code for rank in ended] == [3, 3], ended[0].text
        (line,) = [line for line in ended[0].err.splitlines() if line.startswith("E-")]
        assert line.startswith(f"E-TOK-19 {path}: ") and "Traceback" not in ended[0].text
        assert "(from step 3" in (said := runs.finish()) or "(from step 6" in said or "(from step 9" in said


def test_data_that_is_cut_while_it_is_read(runs: KilledRuns) -> None:
    """One line and exit code 3; restored, the run goes on to what it would have been."""
    runs.fresh()
    folder = next(Path(word.partition("=")[2]) for word in runs.words if word.startswith("data.dir="))
    path = folder / "text_train.bin"
    content = path.read_bytes()
    try:
        arguments = {"overrides": [*runs.words, "run.name=r"], "path": str(path), "step": 5, "rank": 1}
        ended = runs.server.run(f"{COMMAND}:run_and_cut", arguments, ranks=2)
    finally:
        path.write_bytes(content)
    assert [rank.code for rank in ended] == [3, 3], ended[0].text
    (line,) = [line for line in ended[0].err.splitlines() if line.startswith("E-")]
    shrank, before_a_save = f"E-TOK-16 {path}: shrank from {len(content)} to 100 bytes", f"E-TOK-19 {path}: "
    assert line.startswith((shrank, before_a_save)) and "Fix: " in line
    assert "Traceback" not in ended[0].text and ended[1].err == ""
    assert "RECOVERY" not in runs.finish()
