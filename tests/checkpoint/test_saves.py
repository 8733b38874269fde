"""Saves that go on beside a training: what is in them, when they are published, and what becomes of their errors."""

import errno
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from coca_train import checkpoint
from coca_train.checkpoint import Saves, commit, writing
from coca_train.checkpoint.format import ShardReader, ShardWriter
from coca_train.runtime.errors import DivergedError, ResourceError, StorageError
from coca_train.training.saving import Saver
from tests.faults.fake import FakeEngine, holds, meta, save
from tests.faults.fork_server import ForkServer, values

Gate = threading.Event
DATA: Any = SimpleNamespace(check=lambda step, everything: None)
RECORDS: Any = SimpleNamespace(written=lambda: None, sync=lambda: None)
ROOT = "checkpoints"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """No tensor is written before it is set."""
    gate, write = threading.Event(), ShardWriter.write

    def slow(self: ShardWriter, name: str, *parts: torch.Tensor) -> None:
        assert gate.wait(30)
        write(self, name, *parts)

    monkeypatch.setattr(ShardWriter, "write", slow)
    yield gate
    gate.set()


def saves(run: Path, engine: FakeEngine) -> Saves:
    return Saves(run, cast(Any, engine))


class Training:
    """A saver of a run, driven step by step; each step changes the engine's state in place."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.run, self.engine = run, FakeEngine(0)
        self.saver = Saver(run, cast(Any, self.engine), meta(), cast(Any, None), DATA, RECORDS, keep)

    def step(self, number: int, due: bool = False, wait: bool = False) -> bool:
        for name, tensor in FakeEngine(number).state.items():
            self.engine.state[name].copy_(tensor)
        self.engine.step = number
        self.saver.meta = meta(number)
        return self.saver(number, due, wait)

    def published(self) -> list[int]:
        return sorted(int(name[5:]) for name in os.listdir(self.run / ROOT) if name.startswith("step-"))

    def settled(self) -> None:
        """All that is to be written is, but for the manifest."""
        one = self.saver.saves._save
        assert one is not None and one.writing is not None
        one.writing.join()

    def steps(self, first: int) -> int:
        """Steps until no save is in flight; the last of them."""
        while self.saver.saves.in_flight:
            assert self.step(first)
            first += 1
            time.sleep(0.005)
        return first - 1


def test_the_training_goes_on_and_is_not_in_the_checkpoint(tmp_path: Path, gate: Gate) -> None:
    training = Training(tmp_path)
    assert training.step(10, due=True)
    assert training.step(11) and training.step(12)
    assert training.published() == [] and not list((tmp_path / ROOT).glob("step-*"))
    gate.set()
    training.settled()
    training.steps(13)
    assert training.published() == [10]
    assert holds(checkpoint.find(tmp_path, "run-1"), 10)


def test_one_is_in_flight(tmp_path: Path, gate: Gate) -> None:
    training = Training(tmp_path)
    training.step(10, due=True)
    threading.Timer(0.2, gate.set).start()
    assert training.step(20, due=True)
    assert training.published() == [10]
    assert training.step(30, due=True, wait=True)
    assert training.published() == [20, 30] and not training.saver.saves.in_flight
    assert holds(checkpoint.find(tmp_path, "run-1"), 30)


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: str = "exp_avg/embed.weight") -> None:
    write = ShardWriter.write

    def failing(self: ShardWriter, name: str, *parts: torch.Tensor) -> None:
        if name == after:
            raise error
        write(self, name, *parts)

    monkeypatch.setattr(ShardWriter, "write", failing)


def test_a_full_disk_is_told_after_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path)
    assert training.step(10, due=True, wait=True)
    capfd.readouterr()
    fail(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    assert training.step(20, due=True)
    training.settled()
    assert "WARNING" not in capfd.readouterr().err
    assert not training.step(21)
    assert "WARNING: E-RUN-09 " in (said := capfd.readouterr().err) and "save 1 of 3" in said
    assert sorted(os.listdir(tmp_path / ROOT)) == ["latest", "step-00000010"]
    assert training.step(30, due=True)
    assert training.step(40, due=True)  # that of 30 has failed, and this one begins
    with pytest.raises(StorageError, match=r"E-RUN-09 .*No space left"):
        training.step(50, due=True, wait=True)
    assert holds(checkpoint.find(tmp_path, "run-1"), 10)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_no_memory_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    save(tmp_path, 10)

    def refuse(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(writing.HostCopy, "reserve", refuse)
    one = saves(tmp_path, FakeEngine(20))
    assert one.begin(20, meta(20)) is None
    assert one.proceed(wait=True)
    told = one.error
    assert isinstance(told, ResourceError) and str(told).startswith("E-RUN-33 ") and told.exit_code == 8
    assert sorted(os.listdir(tmp_path / ROOT)) == ["latest", "step-00000010"]


def test_a_bug_of_the_thread_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, ZeroDivisionError("here"))
    one = saves(tmp_path, FakeEngine(20))
    one.begin(20, meta(20))
    with pytest.raises(ZeroDivisionError, match="here"):
        one.proceed(wait=True)


def test_a_state_that_is_not_finite_ends_the_run_after_the_next_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.engine.state["model/scale"].fill_(torch.nan)
    assert training.saver(10, True, False)
    training.settled()
    with pytest.raises(DivergedError, match=r"E-CKP-18 step 10: model/scale"):
        training.step(11)
    assert os.listdir(tmp_path / ROOT) == []


def test_nothing_is_read_again_to_delete_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardReader, "sha256", lambda *arguments: pytest.fail("a file was read"))
    training = Training(tmp_path)
    for step in (10, 20, 30):
        training.step(step, due=True, wait=True)
    assert training.published() == [20, 30]


def test_a_file_is_read_twice_only_where_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coca_train.checkpoint import format
    from coca_train.runtime import durable

    save(tmp_path, 10)
    monkeypatch.setattr(format, "SETTLED_S", -1e9)
    read_at, read = durable.read_at, []
    monkeypatch.setattr(durable, "read_at", lambda *place: read.append(place[1:]) or read_at(*place))
    newest = checkpoint.find(tmp_path, "run-1")
    assert newest is not None
    shard = newest.path / newest.manifest["files"][0]["name"]
    whole = (0, shard.stat().st_size)
    assert read.count(whole) == 1
    assert holds(newest, 10) and read.count(whole) == 1
    assert checkpoint.find(tmp_path, "run-1") and read.count(whole) == 2  # what it goes on from is read again
    os.utime(shard)
    assert holds(newest, 10) and read.count(whole) == 3


def test_a_process_that_ends_leaves_what_the_next_sweeps(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "ABANDON_S", 0.1)
    save_10 = Training(tmp_path)
    gate.set()
    save_10.step(10, due=True, wait=True)
    gate.clear()
    training = Training(tmp_path)
    training.step(20, due=True)
    with pytest.raises(KeyboardInterrupt), training.saver:
        raise KeyboardInterrupt
    assert [name[:9] for name in os.listdir(tmp_path / ROOT) if name.startswith(".tmp")] == [".tmp-step"]
    gate.set()
    assert holds(checkpoint.find(tmp_path, "run-1", clean=True), 10)
    assert sorted(os.listdir(tmp_path / ROOT)) == ["latest", "step-00000010"]


@pytest.mark.parametrize("error", [DivergedError("E-RUN-20 x"), ZeroDivisionError("a bug")])
def test_what_is_in_flight_is_published_where_all_ranks_end_alike(tmp_path: Path, error: Exception) -> None:
    training = Training(tmp_path)
    training.step(20, due=True)
    with pytest.raises(type(error)), training.saver:
        raise error
    assert training.published() == [20]


def test_a_save_says_what_it_cost(tmp_path: Path, gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    training = Training(tmp_path)
    training.step(10, due=True)
    threading.Timer(0.3, gate.set).start()
    training.settled()
    training.steps(11)
    (line,) = capfd.readouterr().err.splitlines()
    said = re.fullmatch(
        r"save      step 10: blocked training for (\d+\.\d\d) s \((\d+\.\d\d) s in background\)",
        line,
    )
    assert said is not None
    assert float(said[2]) >= 0.25  # nothing waited for it


def test_blocks_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that begin and end anywhere in blocks; the memory is taken once."""
    monkeypatch.setattr(writing, "BLOCK", 7)
    copy, engine = writing.HostCopy(torch.device("cpu")), FakeEngine(3)
    for _ in range(2):
        parts = copy.take(engine.slices(), None)
        for part in parts:
            assert part.values is not None
            assert torch.equal(torch.cat([torch.zeros(0), *part.values]), engine.state[part.name].flatten())
        n = sum(tensor.numel() for tensor in engine.state.values())
        assert len(copy._blocks) == -(-n // 7)


def test_the_memory_is_there_before_the_first_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BLOCK", 7)
    training = Training(tmp_path)
    with training.saver:
        reserving = training.saver.saves._reserving
        assert reserving is not None
        reserving.join()
        blocks = list(training.saver.saves._copy._blocks)
        training.step(10, due=True)
        assert [id(block) for block in training.saver.saves._copy._blocks] == [id(block) for block in blocks]
        training.steps(11)


def test_ranks_write_at_the_same_time(server: ForkServer, tmp_path: Path) -> None:
    """Each waits in its first tensor for all others to be in theirs."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "run").mkdir()
    ended = server.run("tests.faults.fake:save_together", {"run_dir": str(tmp_path / "run")}, ranks=3)
    assert values(ended) == [None] * 3
    assert holds(checkpoint.find(tmp_path / "run", "run-1"), 30)
