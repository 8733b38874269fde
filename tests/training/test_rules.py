"""Small rules of a run: its length, one rank's wrong data, a last save that fails, what ends it from outside."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from coca_train import commands as cli
from coca_train.engine.base import StepResult
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, DataError, StorageError
from coca_train.settings import load
from coca_train.training import run as train
from coca_train.training.loop import Tools, run_stage
from coca_train.training.stage import effective_steps


def test_length_of_a_run(tmp_path):
    assert effective_steps(10, None, 0, tmp_path) == 10
    assert effective_steps(10, 7, 7, tmp_path) == 7
    with pytest.raises(DataError, match="E-MIX-01"):
        effective_steps(10, 0, 0, tmp_path)
    with pytest.raises(CheckpointError, match=r"E-CKP-21 .*step 11, beyond the 10"):
        effective_steps(10, None, 11, tmp_path)


def test_an_error_on_the_main_rank_reaches_all():
    assert dist.broadcast_from_rank0(lambda: 3) == 3
    with pytest.raises(StorageError, match="full"):
        dist.broadcast_from_rank0(lambda: (_ for _ in ()).throw(StorageError("full")))


def test_wrong_data_of_one_rank_reaches_all(monkeypatch):
    assert dist.raise_on_all_ranks(lambda: 3) == 3
    with pytest.raises(DataError, match="E-TOK-09 here"):
        dist.raise_on_all_ranks(lambda: (_ for _ in ()).throw(DataError("E-TOK-09 here")))
    monkeypatch.setattr(dist, "all_reduce", lambda values, op: [1.0])  # another rank has something to say
    monkeypatch.setattr(dist, "all_gather_object", lambda own: [own, DataError("E-TOK-08 there")])
    with pytest.raises(DataError, match="E-TOK-08 there"):
        dist.raise_on_all_ranks(lambda: 3)


class Recorder:
    """Everything the loop asks of its tools, without doing it."""

    def __init__(self, saves: list[bool]) -> None:
        self.saves, self.saved, self.asked, self.records = saves, [], [], []

    def log(self, step: int, record: dict[str, Any]) -> None:
        self.records.append((step, record))

    def add(self, tokens: int, seconds: float) -> None: ...

    def recent(self) -> dict[str, float]:
        return {}

    def requested(self) -> bool:
        return False

    def section(self, name: str, timeout_s: float) -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def save(self, step: int, due: bool, wait: bool) -> bool:
        self.asked.append((step, due, wait))
        if not due:
            return True
        self.saved.append(step)
        if not self.saves:
            raise StorageError("E-RUN-09 full")
        return self.saves.pop(0)


def drive(saves: list[bool], losses: list[float] | None = None, *words: str) -> Recorder:
    steps = ["train.max_steps=4", "optim.warmup_steps=0", "checkpoint.save_every_steps=2", "eval.every_steps=3"]
    config = load([*steps, *words]).config
    tool = Recorder(saves)
    skipped = [loss != loss for loss in losses or [1.0] * 4]
    engine = SimpleNamespace(
        skipped_steps=0,
        device=torch.device("cpu"),
        train_step=lambda batches, lr: StepResult(loss=1.0, grad_norm=1.0, skipped=skipped.pop(0), tokens=8),
    )
    probe = (lambda step: {"probe/x/8": 1.0} if step > 2 else {}) if config.eval.extrapolation.every_steps else None
    tools = Tools(*[cast(Any, tool)] * 4, lambda: {"valid/x": 1.0}, tool.save, probe)
    run_stage(config, cast(Any, engine), iter([[]] * 4), tools, first_step=0, start_step=0, max_steps=4)
    return tool


def test_saves_validations_and_records_come_when_they_are_due():
    tool = drive([True, True])
    assert tool.asked == [(1, False, False), (2, True, False), (3, False, False), (4, True, True)]
    assert [step for step, record in tool.records if "valid/x" in record] == [3, 4]
    assert [step for step, record in tool.records if "loss" in record] == [1, 4]


def test_probes_come_when_they_are_asked_for_and_found_something():
    def steps(*words: str) -> list[int]:
        records = drive([True, True], None, *words).records
        assert all(record for _, record in records)
        return [step for step, record in records if "probe/x/8" in record]

    assert steps() == []
    assert steps("eval.extrapolation.every_steps=2") == [4]
    assert steps("eval.extrapolation.every_steps=1") == [3, 4]


def test_the_last_save_must_succeed():
    assert drive([False, False, True]).saved == [2, 4, 4]  # an early one may fail
    with pytest.raises(StorageError, match="E-RUN-09"):
        drive([True, False])


def test_skipped_steps_are_recorded():
    tool = drive([True, True], [1.0, float("nan"), 1.0, 1.0])
    assert [step for step, record in tool.records if "loss" in record] == [1, 2, 4]


ENDINGS = {
    "gpu": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"), 8, "E-RUN-16"),
    "host": (MemoryError(), 8, "E-RUN-16"),
    "allocator": (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), 8, "E-RUN-16"),
    "bug": (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 1, "This is a bug in coca_train"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_what_ends_a_run_is_one_line_and_an_exit_code(case, monkeypatch, capsys):
    error, code, words = ENDINGS[case]

    def fail(*_):
        raise error

    monkeypatch.setattr(train.engine, "start", fail)
    assert cli.main(["train.max_steps=100"]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert ("Traceback" in shown) is (case == "bug")
