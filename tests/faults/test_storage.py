"""Storage faults and kills at every file operation of a save: the last good checkpoint is always found."""

import os
import shutil
from pathlib import Path

import pytest

from coca_train import checkpoint
from tests.cases import slow_unless
from tests.faults.fake import holds, save
from tests.faults.fork_server import ForkServer, values

SAVE, RECOVER = "tests.faults.fake:save_two_more", "tests.faults.fake:recover"
STEPS = (10, 20)


class Trials:
    """A run directory with checkpoints 10 and 20, copied for each trial; a trial saves and prunes 30 and 31."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.server, self.folder, self._operations = server, folder, dict[int, list[list[str]]]()
        (folder / "template").mkdir()
        for step in STEPS:
            save(folder / "template", step)

    def start(self) -> Path:
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        shutil.copytree(self.folder / "template", self.folder / "trial")
        return self.folder / "trial"

    def operations(self, ranks: int) -> list[list[str]]:
        """Every file operation of a trial, by rank: the same ones every time."""
        if ranks not in self._operations:
            run = self.start()
            answers = values(self.server.run(SAVE, self._job(run), ranks, inject={"root": str(run)}))
            self._operations[ranks] = [answer["operations"] for answer in answers]
        return self._operations[ranks]

    def broken(self, world: int, **inject: object) -> tuple[Path, list]:
        run = self.start()
        inject["root"] = str(run)
        return run, self.server.run(SAVE, self._job(run), world, inject=inject, fail_fast_s=3.0)

    def _job(self, run: Path) -> dict:
        return {"run_dir": str(run), "first": 30}

    def check(self, run: Path, ranks: int = 1) -> int:
        """What a restart finds; it must be one of the last three, leave no litter, and a fresh save must work."""
        if ranks == 1:
            with checkpoint.RunLock(run):
                newest = checkpoint.find(run, "run-1", clean=True)
            assert newest is not None and holds(newest, newest.step)
            step = newest.step
        else:
            step = values(self.server.run(RECOVER, {"run_dir": str(run)}, ranks))[0]
        left = set(os.listdir(run / "checkpoints"))
        assert {name for name in left if not name.startswith("step-")} == {"latest"}
        assert len(left) >= 3, "never fewer than two checkpoints"
        return step


@pytest.fixture(scope="module")
def trials(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(server, tmp_path_factory.mktemp("storage"))


@pytest.mark.parametrize("mode", slow_unless(["kill", "torn"], ["kill", "kill_after", "torn"]))
def test_killed_at_every_operation_alone(trials: Trials, mode: str) -> None:
    """One process: kill -9 before, after, and in the middle of each operation of two saves and prunes."""
    operations = trials.operations(1)[0]
    steps = []
    for at, operation in enumerate(operations):
        if mode == "torn" and not operation.startswith("write"):
            continue
        run, ranks = trials.broken(1, at=at, mode=mode)
        assert ranks[0].code == -9, (at, operation, ranks[0].text)
        steps.append(trials.check(run))
    print(f"\n{mode}: {len(steps)} kills of {len(operations)} operations; recovered at {sorted(set(steps))}")
    assert steps == sorted(steps) and set(steps) == {20, 30, 31}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "all, at rank 0's", "all, at rank 1's"])
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_killed_at_every_operation_of_two_ranks(trials: Trials, victim: str, mode: str) -> None:
    """Two ranks: one dies and the other is left to its fate, or both die together."""
    rank = int(victim[-1]) if victim.startswith("rank") else int("1's" in victim)
    operations = trials.operations(2)[rank]
    steps = []
    for at, operation in enumerate(operations):
        if mode == "torn" and not operation.startswith("write"):
            continue
        run, _ = trials.broken(2, at=at, mode=mode, ranks=[rank], group=victim.startswith("all"))
        steps.append(trials.check(run))
    print(f"\n{victim}, {mode}: {len(steps)} kills of {len(operations)} operations; recovered at {sorted(set(steps))}")
    assert set(steps) <= {20, 30, 31}


QUICK_KILLS = [(0, "open MANIFEST.json"), (0, "rename .tmp"), (0, "replace .latest.new"), (1, "fsync state-00001"),
               (1, "write state-00001"), (0, "rmdir .trash")]  # fmt: skip


@pytest.mark.parametrize(("rank", "operation"), QUICK_KILLS)
def test_killed_at_the_edges_of_two_ranks(trials: Trials, rank: int, operation: str) -> None:
    operations = trials.operations(2)[rank]
    at = next(number for number, name in enumerate(operations) if name.startswith(operation))
    run, ranks = trials.broken(2, at=at, ranks=[rank])
    assert ranks[rank].code == -9 and ranks[1 - rank].code != 0
    assert trials.check(run, ranks=2) in (20, 30)


def fails_cleanly(trials: Trials, ranks: int, at: int, mode: str, rank: int) -> None:
    run, ended = trials.broken(ranks, at=at, mode=mode, ranks=[rank])
    for answer in ended:
        if answer.code == 7:  # it could not even write its lock
            assert "E-RUN-27" in answer.text
            continue
        assert answer.code == 0, answer.text
        errors = answer.value["value"] if rank == ended.index(answer) else answer.value
        for error in errors:
            assert error is None or (error.startswith("E-RUN-09 ") and "free" in error and "\n" not in error), error
    assert len({answer.code for answer in ended}) == 1, "all ranks agree"
    trials.check(run)


@pytest.mark.parametrize("mode", slow_unless(["enospc"], ["enospc", "eio"]))
def test_storage_fails_at_every_operation_alone(trials: Trials, mode: str) -> None:
    for at in range(len(trials.operations(1)[0])):
        fails_cleanly(trials, 1, at, mode, 0)


@pytest.mark.parametrize(("rank", "operation"), QUICK_KILLS[:5])
def test_storage_fails_on_one_of_two_ranks(trials: Trials, rank: int, operation: str) -> None:
    operations = trials.operations(2)[rank]
    at = next(number for number, name in enumerate(operations) if name.startswith(operation))
    fails_cleanly(trials, 2, at, "enospc", rank)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["enospc", "eio"])
@pytest.mark.parametrize("rank", [0, 1])
def test_storage_fails_at_every_operation_of_two_ranks(trials: Trials, rank: int, mode: str) -> None:
    for at in range(len(trials.operations(2)[rank])):
        fails_cleanly(trials, 2, at, mode, rank)


def test_power_loss_order(trials: Trials) -> None:
    """What a rename makes visible was synced before, and the rename before anything is deleted.

    kill -9 keeps the page cache; only the order of these operations protects against a power cut.
    """
    names = [name.replace("step-00000030", "30") for name in trials.operations(1)[0]]
    first = next(number for number, name in enumerate(names) if name.startswith("mkdir .tmp-30"))
    order = [
        "mkdir .tmp-30", "open state-00000", "write state-00000", "fsync state-00000",
        "open MANIFEST", "write MANIFEST", "fsync MANIFEST", "fsync .tmp-30", "rename .tmp-30", "fsync checkpoints",
        "open .latest.new", "fsync .latest.new", "replace .latest.new", "fsync checkpoints",
        "rename step-", "unlink ", "rmdir .trash",
    ]  # fmt: skip
    last = first - 1
    for expected in order:
        last = next(number for number in range(last + 1, len(names)) if names[number].startswith(expected))
    state = [number for number, name in enumerate(names) if name.startswith("write state") and number < last]
    assert max(state) < next(number for number, name in enumerate(names) if name.startswith("fsync state"))
