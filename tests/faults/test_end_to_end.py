"""kill -9 the real command at any moment and run it again: the end is bit-identical to an uninterrupted run."""

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank, slow_unless

TARGET = "tests.faults.real:run"
KILLS = int(os.environ.get("COCA_KILLS", "40"))


class Runs:
    """Two-rank runs of one configuration, and the uninterrupted one they must end like."""

    def __init__(self, server: ForkServer, folder: Path, settings: Sequence[str] = ()) -> None:
        (folder / "data").mkdir()
        self.server, self.folder = server, folder
        self.command = [*real.TINY, *real.prepare(folder / "data"), f"run.root={folder}/runs", "run.name=r", *settings]
        self.run_dir = folder / "runs" / "r"
        began = time.monotonic()
        ended = self.launch(inject={"root": str(self.run_dir / "checkpoints")})
        assert [rank.code for rank in ended] == [0, 0], ended[0].text
        self.seconds = time.monotonic() - began
        self.operations = [rank.value["operations"] for rank in ended]
        self.wanted = real.final_state(self.run_dir)
        assert self.wanted[0] == 10 and len(self.wanted[2]) == 10

    def launch(self, **options: Any) -> list[Rank]:
        return self.server.run(TARGET, {"overrides": self.command}, ranks=2, fail_fast_s=1.0, **options)

    def fresh(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def finish(self) -> str:
        """The same command again until it is done; all it said."""
        said = ""
        for _ in range(3):
            ended = self.launch()
            said += ended[0].text
            if [rank.code for rank in ended] == [0, 0]:
                break
        else:
            raise AssertionError(f"not done after three launches: {said[-5000:]} {ended[1].text[-3000:]}")
        assert real.final_state(self.run_dir) == self.wanted
        assert not real.leftovers(self.run_dir)
        return said


@pytest.fixture(scope="module", params=slow_unless(["bf16"], ["bf16", "fp32"]))
def runs(request: pytest.FixtureRequest, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(server, tmp_path_factory.mktemp("end-to-end"), [f"engine.dtype={request.param}"])


def operations_of_save(runs: Runs, rank: int, step: int) -> list[int]:
    """Numbers of the file operations of one save on one rank."""
    folder = f".tmp-step-{step:08d}"
    sign = f"open state-{rank:05d}-of-00002.safetensors" if rank else f"mkdir {folder}"
    starts = [n for n, name in enumerate(runs.operations[rank]) if name.startswith(sign)]
    first = starts[0] if rank == 0 else starts[step // 3 - 1]
    later = [n for n in starts if n > first] + [len(runs.operations[rank])]
    if rank == 0:
        later = [n for n, name in enumerate(runs.operations[0]) if n > first and name.startswith("mkdir .tmp")] or later
    return list(range(first, later[0]))


def test_stop_and_kill_once(runs: Runs) -> None:
    """SIGTERM: exit 75, at most a step lost. kill -9 of one rank while it writes: 76 for the other. Then done."""
    runs.fresh()
    at = operations_of_save(runs, 1, 6)[2]
    ended = runs.launch(inject={"root": str(runs.run_dir / "checkpoints"), "at": at, "ranks": [1]})
    assert ended[1].code == -signal.SIGKILL and ended[0].code in (76, -9), ended[0].text
    assert "RECOVERY: step 3" in runs.finish()


@pytest.mark.slow
def test_killed_at_random_moments(runs: Runs) -> None:
    choose = random.Random(7)
    outcomes: dict[str, int] = {}
    for _ in range(KILLS):
        runs.fresh()
        moment, rank = choose.uniform(0.0, runs.seconds), choose.choice([0, 1, -1])
        ended = runs.launch(signals=[(moment, rank, int(signal.SIGKILL))])
        said = runs.finish()
        outcome = "recovered" if "(from step" in said else "afresh"
        if all(rank.code == 0 for rank in ended):
            outcome = "finished before"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"\n{KILLS} kills within {runs.seconds:.1f} s: {outcomes}")


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "group"), [(0, False), (1, False), (0, True), (1, True)])
def test_killed_at_every_file_operation_of_a_save(runs: Runs, rank: int, group: bool) -> None:
    """The second save of the real command. group: all ranks die with the victim."""
    numbers = operations_of_save(runs, rank, 6)
    for at in numbers:
        runs.fresh()
        inject = {"root": str(runs.run_dir / "checkpoints"), "at": at, "ranks": [rank], "group": group}
        ended = runs.launch(inject=inject)
        assert ended[rank].code == -signal.SIGKILL
        said = runs.finish()
        assert "(from step 3" in said or "(from step 6" in said, said
    print(f"\nrank {rank}, {'all' if group else 'one'} killed: {len(numbers)} operations")
