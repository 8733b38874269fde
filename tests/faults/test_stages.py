"""A schedule of three stages on two ranks, killed at its borders: it ends bit-identical to the uninterrupted run."""

import signal
from typing import Any

import pytest

from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import KilledRuns
from tests.stages.support import logged, saved, schedule, stage, state, steps, weights

K, QKV = "blocks.*.attention.k.*", "blocks.*.attention.[qkv].*"
LAST = "max_steps: 3, train: {seq_len: 48}, optim: {lr: 0.02}, position: {rope_scaling: {name: linear, factor: 2}}"
SCHEDULE = [
    "position=rope", "optim.warmup_steps=0", "eval.max_tokens=48", "eval.every_steps=100",
    *schedule(
        stage("k", f"max_steps: 3, trainable: ['{K}']"),
        stage("qkv", f"max_steps: 3, trainable: ['{QKV}']"),
        stage("all", LAST),
    ),
    "checkpoint.save_every_steps=2",
]  # fmt: skip
BORDERS = (3, 6)


class StagedRuns(KilledRuns):
    """Runs of the schedule."""

    def left(self) -> Any:
        """What must be the same: state, losses and batches, frozen weights at the borders, each step once."""
        step, digest, losses = real.final_state(self.run_dir)
        assert step == 9 and [record["step"] for record in steps(self.run_dir)] == list(range(1, 10))
        return digest, losses, [state(self.run_dir, border) for border in BORDERS]

    def kill(self, **inject: Any) -> int:
        """Launch and kill; the newest step that is saved."""
        ended = self.launch(inject={"root": str(self.run_dir)} | inject)
        assert ended[inject["ranks"][0]].code == -signal.SIGKILL, ended[0].text
        return max(saved(self.run_dir), default=0)

    def finish(self) -> str:
        log = super().finish()
        assert {path.parent.name for path in self.run_dir.rglob("done.json")} == {"k", "qkv", "report"}
        return log

    def saves(self, rank: int) -> dict[int, range]:
        """By step: numbers of the file operations of its save, and of what follows until the next."""
        sign = "open state-00001-of-00002.safetensors" if rank else "mkdir .tmp-step-"
        starts = [number for number, name in enumerate(self.operations[rank]) if name.startswith(sign)]
        ends = [*starts[1:], len(self.operations[rank])]
        when = (2, 3, 4, 6, 8, 9)
        return {step: range(a, b) for step, a, b in zip(when, starts, ends, strict=True)}


@pytest.fixture(scope="module")
def runs(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> StagedRuns:
    folder = tmp_path_factory.mktemp("stages")
    return StagedRuns(server, [*real.TINY, *SCHEDULE, *real.prepare(folder)], folder)


def test_each_stage_changes_what_it_trains(runs: StagedRuns) -> None:
    assert saved(runs.run_dir) == [3, 6, 8, 9]
    first, second, third = (weights(runs.run_dir, step) for step in (*BORDERS, 9))
    moved = {name for name in first if first[name] != second[name]}
    assert moved == {name for name in first if any(f".attention.{part}." in name for part in "qkv")}
    assert {name for name in first if second[name] != third[name]} == set(first)


NOTE = {"named": "replace .run.json", "ranks": [0], "at": 0}  # of a resumed run: that its next stage begins


def test_killed_inside_the_saves_at_both_borders_and_between_the_stages(runs: StagedRuns) -> None:
    """One run, killed four times: each launch goes on where the one before died."""
    runs.fresh()
    inside = next(n for n in runs.saves(0)[3] if runs.operations[0][n].startswith("write state-00000")) + 1
    assert runs.kill(at=inside, ranks=[0], mode="torn", group=True) == 2
    assert runs.kill(**NOTE, group=True) == 3
    writes = sum(runs.operations[1][n].startswith("write state-00001") for n in runs.saves(1)[4])
    assert runs.kill(named="write state-00001", at=writes + 1, ranks=[1]) == 4
    assert runs.kill(**NOTE) == 6
    assert "(from step 6, 3 steps)" in runs.finish()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_at_every_file_operation_of_a_border(runs: StagedRuns, border: int, rank: int) -> None:
    """The save, the report, the note of the next stage, up to the next save."""
    for at in runs.saves(rank)[border]:
        runs.fresh()
        runs.kill(at=at, ranks=[rank], group=True)
        runs.finish()


CASES = [(dtype, zero) for dtype in ("bf16", "fp32") for zero in (0, 1, 2, 3) if (dtype, zero) != ("bf16", 0)]


@pytest.mark.parametrize(("dtype", "zero"), slow_unless([("bf16", 3)], CASES))
def test_frozen_weights_of_another_run_are_never_rounded(runs: StagedRuns, dtype: str, zero: int) -> None:
    """start.path: a run in float32. k, then q, k and v are trained; all else stays what it was there, to the bit."""
    source = runs.folder / "source"
    if not source.exists():
        runs.train("source", "engine.dtype=fp32", "~stages.qkv", "~stages.all", "stages.k.trainable=['*']")
    words = [f"engine.dtype={dtype}", f"engine.zero_stage={zero}", f"start.path={source}", "~stages.all"]
    trained = runs.train(f"frozen-{dtype}-{zero}", *words, ranks=2)
    begun, first, second = weights(source, 3), weights(trained, 3), weights(trained, 6)
    assert {name for name in begun if begun[name] != first[name]} == {n for n in begun if ".attention.k." in n}
    inner = {name for name in begun if any(f".attention.{part}." in name for part in "qkv")}
    assert {name for name in begun if first[name] != second[name]} == inner
    for step, part in ((3, "k"), (6, "qkv")):
        keys = {key.partition("/")[2] for key in state(trained, step) if not key.startswith("model/")}
        assert keys == {name for name in begun if any(f".attention.{letter}." in name for letter in part)}


def test_another_number_of_ranks_in_the_middle_of_stages(runs: StagedRuns) -> None:
    """1 -> 2 -> 1 ranks, stopped within stages 1 and 2: the same batches, the same losses within rounding."""
    words = ["engine.dtype=fp32", "engine.zero_stage=1"]
    whole = runs.train("whole", *words)
    runs.stopped("moved", 1, *words)
    assert saved(runs.folder / "moved") == [1]
    runs.stopped("moved", 4, *words, ranks=2)
    assert saved(runs.folder / "moved")[-1] == 5
    moved = runs.train("moved", *words)
    assert logged(moved, "step") == logged(whole, "step") == list(range(1, 10))
    assert logged(moved, "batch_digest") == logged(whole, "batch_digest")
    pairs = zip(logged(moved, "loss"), logged(whole, "loss"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5
