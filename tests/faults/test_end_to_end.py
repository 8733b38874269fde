"""kill -9 the real command at any moment and run it again: the end is bit-identical to an uninterrupted run."""

import os
import random
import shutil
import signal
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
        ended = self.launch(inject={"root": str(self.run_dir)})
        assert [rank.code for rank in ended] == [0, 0], ended[0].text
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
    """Numbers of the file operations of one save (and its pruning) on one rank."""
    names = runs.operations[rank]
    sign = "open state-00001-of-00002.safetensors" if rank else "mkdir .tmp-step-"
    starts = [number for number, name in enumerate(names) if name.startswith(sign)] + [len(names)]
    which = step // 3 - 1
    return list(range(starts[which], starts[which + 1]))


def test_stop_and_kill_once(runs: Runs) -> None:
    """SIGTERM: exit 75 and a checkpoint. Then kill -9 of one rank while it writes: 76 for the other. Then done."""
    runs.fresh()
    root = str(runs.run_dir)
    ended = runs.launch(inject={"root": root, "at": operations_of_save(runs, 1, 3)[2], "ranks": [1], "mode": "term"})
    assert [rank.code for rank in ended] == [75, 75], ended[0].text
    assert "stopped at step 4, checkpoint saved" in ended[0].text
    ended = runs.launch(inject={"root": root, "at": 2, "ranks": [1]})
    assert ended[1].code == -signal.SIGKILL and ended[0].code in (76, -signal.SIGKILL), ended[0].text
    said = runs.finish()
    assert "RECOVERY: step 4" in said and "(from step 4" in said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_random_moments(runs: Runs) -> None:
    """Moments spread over the life of a run: up to 0.2 s after any of its file operations, on either rank or both."""
    choose = random.Random(7)
    outcomes: dict[str, int] = {}
    for _ in range(KILLS):
        runs.fresh()
        rank = choose.choice([0, 0, 1])
        at, delay = choose.randrange(len(runs.operations[rank])), choose.uniform(0.0, 0.2)
        inject = {"root": str(runs.run_dir), "at": at, "ranks": [rank], "mode": "later", "delay_s": delay}
        ended = runs.launch(inject=inject | {"group": choose.random() < 0.5})
        said = runs.finish()
        step = said.rpartition("(from step ")[2].partition(",")[0] if "(from step " in said else "0"
        outcome = "too late" if all(rank.code == 0 for rank in ended) else f"from step {step}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"\n{KILLS} kills: {dict(sorted(outcomes.items()))}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("rank", "group"), [(0, False), (1, False), (0, True), (1, True)])
def test_killed_at_every_file_operation_of_a_save(runs: Runs, rank: int, group: bool) -> None:
    """The second save of the real command. group: all ranks die with the victim."""
    numbers = operations_of_save(runs, rank, 6)
    for at in numbers:
        runs.fresh()
        ended = runs.launch(inject={"root": str(runs.run_dir), "at": at, "ranks": [rank], "group": group})
        assert ended[rank].code == -signal.SIGKILL
        said = runs.finish()
        assert "(from step 3" in said or "(from step 6" in said, said
    print(f"\nrank {rank}, {'all' if group else 'one'} killed: {len(numbers)} operations")
