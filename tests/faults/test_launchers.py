"""Real launchers, and what becomes of their ranks when a signal reaches them: forwarded, or their end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coca_train import checkpoint
from tests.faults import real
from tests.faults.fork_server import ROOT
from tests.processes import children_of, has_ended

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
TORCHRUN = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "--signals-to-handle", HANDLED, "-m"]
DEEPSPEED = [BIN / "deepspeed", "--no_local_rank", "--num_accelerators", "2", "--module"]
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*real.TINY, *real.prepare(tmp_path_factory.mktemp("data")), "train.max_steps=1000000", "run.name=r"]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Of a process and of its children, those that are ranks: python -m coca_train."""
    below = children_of(pid)
    ranks = [number for number in below if b"RANK=" in Path(f"/proc/{number}/environ").read_bytes()]
    return ranks or [rank for number in below for rank in children(number)]


class Job:
    """A launcher with its two ranks."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.run_dir, self.path = process, folder / "r", folder / "log"
        self.ranks: list[int] = []

    def await_ranks(self) -> None:
        """Both have begun, and heed SIGTERM."""

        def begun() -> bool:
            self.ranks = children(self.process.pid)
            return len(self.ranks) == 2 and all(_catches(rank, signal.SIGTERM) for rank in self.ranks)

        until(begun, "two ranks")

    def await_steps(self) -> None:
        self.await_ranks()
        metrics = self.run_dir / "metrics.jsonl"
        until(lambda: metrics.exists() and metrics.read_text().count('"loss"') > 2, f"steps: {self.log}")

    def await_end(self) -> None:
        until(lambda: all(map(has_ended, self.ranks)), f"the end of the ranks: {self.log}")

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@contextmanager
def job(launcher: list[object], words: list[str], folder: Path) -> Iterator[Job]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    command = [str(word) for word in (*launcher, "coca_train", *words, f"run.root={folder}")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )  # fmt: skip
    this = Job(process, folder)
    try:
        yield this
    finally:
        for pid in (process.pid, *this.ranks):
            if not has_ended(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("launcher", [TORCHRUN, DEEPSPEED], ids=["torchrun", "deepspeed"])
def test_ranks_save_and_end_when_their_launcher_is_killed(
    tmp_path: Path, words: list[str], launcher: list[object]
) -> None:
    with job(launcher, words, tmp_path) as running:
        running.await_steps()
        parent = int(Path(f"/proc/{running.ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        running.await_end()
        for rank in (0, 1):
            assert re.search(rf"E-RUN-28 rank {rank}: .*process {parent},", running.log)
        assert "checkpoint saved" in running.log
        assert checkpoint.find(running.run_dir) is not None


def test_ranks_that_have_nothing_to_save_end_with_their_launcher(tmp_path: Path, words: list[str]) -> None:
    with job(TORCHRUN, words, tmp_path) as running:
        running.await_ranks()
        os.kill(running.process.pid, signal.SIGKILL)
        running.await_end()
        assert "checkpoint saved" in running.log or not (running.run_dir / "checkpoints").exists()
        assert "E-RUN-28" in running.log or "E-RUN-15" in running.log


@pytest.mark.parametrize("event", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_torchrun_forwards_what_it_is_told_to(tmp_path: Path, words: list[str], event: str) -> None:
    with job(TORCHRUN, words, tmp_path) as running:
        running.await_steps()
        os.kill(running.process.pid, signal.Signals[event])
        running.await_end()
        assert "checkpoint saved" in running.log
        assert checkpoint.find(running.run_dir) is not None


def test_a_signal_in_the_first_second(tmp_path: Path, words: list[str]) -> None:
    with job(TORCHRUN, words, tmp_path) as running:
        running.await_ranks()
        os.kill(running.process.pid, signal.SIGTERM)
        running.await_end()
        for rank in (0, 1):
            line = f"rank {rank}: stopped by SIGTERM with nothing to save; the same command goes on from there"
            assert line in running.log.splitlines()


def test_a_training_in_the_background_outlives_its_shell(tmp_path: Path, words: list[str]) -> None:
    """Also one that was told its rank by hand."""
    line = f"nohup {sys.executable} -m coca_train {' '.join(words)} run.root={tmp_path} train.max_steps=5 > log 2>&1 &"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=True)
    until(
        lambda: (tmp_path / "log").exists() and "Done. Everything lies in" in (tmp_path / "log").read_text(), "its end"
    )
    assert "E-RUN-28" not in (tmp_path / "log").read_text()
