"""One writer: whoever is second is told who is first; whoever died or froze is replaced and cannot come back."""

import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coca_train.checkpoint import RunLock, lock
from coca_train.runtime.errors import LockedError, StorageError, UserError
from coca_train.runtime.processes import machine_id
from tests.faults.fork_server import ForkServer, values


def hold(run_dir: str) -> None:
    """In a forked process: hold the run."""
    with RunLock(Path(run_dir)):
        time.sleep(60)


def race(run_dir: str) -> str:
    """In a forked process: hold the run for a moment, if it can be had. A second holder would trip over the flag."""
    try:
        with RunLock(Path(run_dir)):
            flag = os.open(Path(run_dir) / "flag", os.O_CREAT | os.O_EXCL)
            time.sleep(0.3)
            os.close(flag)
            os.unlink(Path(run_dir) / "flag")
            return "won"
    except LockedError:
        return "lost"


@pytest.fixture
def holder(server: ForkServer, tmp_path: Path) -> Iterator[int]:
    with server.started("tests.checkpoint.test_lock:hold", {"run_dir": str(tmp_path)}) as pid:
        while not (tmp_path / "run.lock").exists():
            time.sleep(0.01)
        yield pid


def test_second_is_refused_and_told_who(tmp_path: Path, holder: int) -> None:
    with pytest.raises(LockedError, match=rf"E-RUN-08 .*process {holder} on ") as caught, RunLock(tmp_path):
        pass
    assert caught.value.exit_code == 6 and (tmp_path / "run.lock").exists()


def test_dead_holder_is_replaced_at_once(tmp_path: Path, holder: int) -> None:
    """Also while it is a zombie, and when its process id is in use again."""
    os.kill(holder, signal.SIGKILL)
    time.sleep(0.2)
    with RunLock(tmp_path) as mine:
        mine.check()
        card = json.loads((tmp_path / "run.lock").read_text())
        assert card["pid"] == os.getpid()
    (tmp_path / "run.lock").write_text(json.dumps(card | {"pid": 1, "token": "x"}))
    with RunLock(tmp_path):
        pass
    assert not os.listdir(tmp_path)


def test_frozen_holder_is_replaced_and_cannot_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunLock(tmp_path) as frozen:
        old = time.time() - 1000
        os.utime(tmp_path / "run.lock", (old, old))
        with RunLock(tmp_path) as second:
            second.check()
            with pytest.raises(LockedError, match="E-RUN-08"):
                frozen.check()
            frozen.__exit__(None, None, None)
            second.check()


def test_another_host_counts_by_its_heartbeat(tmp_path: Path) -> None:
    card = {"pid": 1, "machine": "elsewhere", "host": "node7", "since": "2026-01-01", "token": "x", "job": "123"}
    (tmp_path / "run.lock").write_text(json.dumps(card))
    with pytest.raises(LockedError, match=r"node7 since 2026-01-01 \(SLURM job 123\)"), RunLock(tmp_path):
        pass
    old = time.time() - lock.STALE_AFTER_S - 1
    os.utime(tmp_path / "run.lock", (old, old))
    with RunLock(tmp_path):
        pass


def test_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.05)
    with RunLock(tmp_path):
        os.utime(tmp_path / "run.lock", (1, 1))
        time.sleep(0.5)
        assert (tmp_path / "run.lock").stat().st_mtime > 1000


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"pid": "x"}'])
def test_unreadable_card_is_not_ignored_while_fresh(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.lock").write_text(content)
    with pytest.raises(LockedError, match="E-RUN-08"), RunLock(tmp_path):
        pass


@pytest.mark.parametrize("stale", [False, True])
def test_race_never_has_two_holders(server: ForkServer, tmp_path: Path, stale: bool) -> None:
    if stale:
        (tmp_path / "run.lock").write_text(json.dumps({"pid": 2**22 + 1, "machine": machine_id(), "token": "x"}))
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    job = {"run_dir": str(tmp_path)}
    for _ in range(2):
        racers = values(server.run("tests.checkpoint.test_lock:race", job, ranks=8, environment=alone))
        assert "won" in racers
    assert not os.listdir(tmp_path)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="E-RUN-27") as caught, RunLock(tmp_path / "file"):
        pass
    assert caught.value.exit_code == 7


def alone(run_dir: str, seconds: float, problem: str = "") -> str:
    """In a forked rank: work of so long on rank 0, where no collective may wait for half as long."""
    from coca_train.engine import start, stop
    from coca_train.engine.process import set_group_timeouts
    from tests.engine.scenarios import engine_config

    start(engine_config())
    done = list[str]()

    def work() -> None:
        time.sleep(seconds)
        if problem:
            raise UserError(problem)
        done.append("done")

    with RunLock(Path(run_dir)) as held:
        set_group_timeouts(1)
        try:
            held.alone(work)
            answer = "".join(done)
        except UserError as error:
            answer = str(error)
        set_group_timeouts(30)
    stop()
    return answer


def test_rank_0_works_alone_for_longer_than_a_collective_may_wait(server: ForkServer, tmp_path: Path) -> None:
    job = {"run_dir": str(tmp_path), "seconds": 2.5}
    assert values(server.run("tests.checkpoint.test_lock:alone", job, ranks=2)) == ["done", ""]
    refused = values(server.run("tests.checkpoint.test_lock:alone", job | {"problem": "E-STA-01 x"}, ranks=2))
    assert refused == ["E-STA-01 x"] * 2
    assert not os.listdir(tmp_path)


def test_a_lock_from_the_future_is_broken_in_two_minutes(tmp_path: Path) -> None:
    """A clock that was wrong when it beat last: the file never grows old by itself."""
    path = tmp_path / "run.lock"
    path.write_text(json.dumps({"pid": 1, "host": "other", "machine": "elsewhere", "since": "then", "token": "t"}))
    os.utime(path, (time.time() + 1e7,) * 2)
    message = rf"E-RUN-08 .*2 minutes.* rm {path}"
    with pytest.raises(LockedError, match=message), RunLock(tmp_path):
        pass
    assert abs(path.stat().st_mtime - time.time()) < 60
    with pytest.raises(LockedError, match="E-RUN-08"), RunLock(tmp_path):
        pass
    os.utime(path, (path.stat().st_mtime - lock.STALE_AFTER_S,) * 2)
    with RunLock(tmp_path):
        pass


def test_a_disk_that_fails_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.lock").write_text("{}")

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path / "run.lock"))

    monkeypatch.setattr(lock.untrusted_io, "read_object", fails)
    with pytest.raises(StorageError, match=r"E-RUN-27 .*Input/output error.*run.lock"), RunLock(tmp_path):
        pass
    monkeypatch.undo()
    (tmp_path / "run.lock").unlink()
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(StorageError, match=r"E-RUN-27 .*directory"), RunLock(tmp_path):
        pass
