"""Worker processes: results in order, errors in order, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest

from coca_train.runtime.errors import DataError, PeerLost
from data_prep.workers import cores, map_ordered
from tests.data_prep.pool_tasks import Double, Echo, Sleepless, Unmakeable
from tests.data_prep.tokenizing import ENVIRONMENT, counted
from tests.processes import has_ended, workers_of


def results(numbers: Iterable[int], workers: int | None) -> list[tuple[str, tuple[int, int, int]]]:
    return list(map_ordered(Double, (100,), ((f"ticket {number}", number) for number in numbers), workers))


def collect(tasks: Iterable[tuple[int, int]], workers: int, seen: list[int]) -> None:
    """The tickets of what comes before an error, too."""
    seen += (ticket for ticket, _ in map_ordered(Double, (0,), tasks, workers))


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(workers):
    numbers = [n for n in range(30) if n not in (7, 8, 9)]
    pairs = results(numbers, workers)
    assert [ticket for ticket, _ in pairs] == [f"ticket {n}" for n in numbers]
    assert [value for _, (value, _, _) in pairs] == [2 * n + 100 for n in numbers]
    pids = {pid for _, (_, pid, _) in pairs}
    assert len(pids) == workers
    assert (os.getpid() in pids) == (workers == 1)
    assert len({started_ns for _, (_, _, started_ns) in pairs}) == workers, "made once in each worker"
    assert all(has_ended(pid) for pid in pids - {os.getpid()})


def test_no_tasks_is_no_result():
    assert results([], 2) == []


def test_none_is_one_worker_a_core(monkeypatch):
    monkeypatch.setattr("data_prep.workers.cores", lambda: 1)
    assert {pid for _, (_, pid, _) in results([1, 2], None)} == {os.getpid()}
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_as_many_are_started_as_there_are_tasks(monkeypatch):
    started = counted(monkeypatch, most=2)
    assert len(results([1, 2], 8)) == 2 and len(started) == 2


def test_3000_workers_are_lowered_before_one_is_started(monkeypatch, capsys):
    monkeypatch.setattr("coca_train.runtime.machine.cores", lambda: 1)
    monkeypatch.setattr("coca_train.runtime.machine.ALWAYS", 2)
    monkeypatch.setattr("coca_train.runtime.machine.PER_CORE", 3)
    started = counted(monkeypatch, most=3)
    assert len(results(range(10, 40), 3000)) == 30
    assert len(started) == 3
    said = capsys.readouterr().err
    assert "work.workers=3000: " in said and "Fix: write work.workers=3\n" in said


class Stopped(Exception):
    pass


@pytest.mark.parametrize("n_started", [1, 3])
def test_after_a_stop_signal_no_further_worker_is_started(monkeypatch, n_started):
    started = counted(monkeypatch, most=n_started)

    def check() -> None:
        if len(started) == n_started:
            raise Stopped

    with pytest.raises(Stopped):
        list(map_ordered(Double, (0,), ((n, n) for n in range(10, 100)), 8, check=check))
    assert len(started) == n_started and workers_of(os.getpid()) == []


def test_after_a_stop_signal_during_start_no_worker_is_waited_for():
    """All are started, and none of them is ready."""
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() > began + 0.5:
            raise Stopped

    with pytest.raises(Stopped):
        list(map_ordered(Sleepless, (), ((n, n) for n in range(100)), 4, check=check))
    assert time.monotonic() < began + 10
    assert workers_of(os.getpid()) == []


def test_a_worker_that_cannot_be_started_is_reported_in_words(monkeypatch):
    import multiprocessing.popen_spawn_posix as spawning

    def refused(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(spawning.Popen, "_launch", refused)
    with pytest.raises(PeerLost, match=r"E-RUN-25 .*Resource temporarily unavailable.* Fix: "):
        results([1, 2], 2)


def ends_with_error(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    yield from ((n, n) for n in numbers)
    raise DataError("E-X-03 input: damaged. Fix: none")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("tasks", "code", "before"),
    [
        ([(n, n) for n in (1, 2, 3, 4, 5, 6, 7, 10, 11)], "E-X-01 seven", [1, 2, 3, 4, 5, 6]),
        ([1, 3], "E-X-03", [1, 3]),
        ([7], "E-X-01", []),
    ],
    ids=["of a task", "of the tasks", "of a task before that of the tasks"],
)
def test_an_error_is_raised_after_everything_before_it(workers, tasks, code, before):
    seen: list[int] = []
    with pytest.raises(DataError, match=code):
        collect(ends_with_error(tasks) if isinstance(tasks[0], int) else iter(tasks), workers, seen)
    assert seen == before


def test_a_bug_in_a_worker_comes_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)worker.*ZeroDivisionError: eight"):
        results([1, 8, 2], 2)


def test_a_worker_that_cannot_be_made_says_why():
    with pytest.raises(DataError, match="E-X-02"):
        list(map_ordered(Unmakeable, (), ((n, n) for n in range(9)), 2))


def test_a_killed_worker_is_reported_in_words():
    began = time.monotonic()
    with pytest.raises(PeerLost, match=r"E-RUN-25 worker process \d+: ended by signal SIGKILL .* Fix: ") as caught:
        results([1, 2, 9, 4, 5, 6, 10, 11, 12, 13, 14], 2)
    assert caught.value.exit_code == 76
    assert time.monotonic() - began < 20
    assert workers_of(os.getpid()) == []


def test_closing_early_leaves_no_process():
    with closing(map_ordered(Double, (0,), ((n, 2) for n in range(1000)), 3)) as stream:
        next(stream)
        pids = workers_of(os.getpid())
        assert len(pids) == 3
    assert all(has_ended(pid) for pid in pids)


def test_tasks_are_not_read_far_ahead():
    taken = []

    def tasks():
        for number in range(10, 1000):
            taken.append(number)
            yield number, number

    with closing(map_ordered(Double, (0,), tasks(), 2)) as stream:
        next(stream)
        next(stream)
        assert len(taken) <= 2 * 2 + 2 + 1


def test_large_tasks_and_answers_pass(capfd):
    data = os.urandom(3 << 20)
    assert list(map_ordered(Echo, (), [(1, data), (2, data), (3, b"")], 2)) == [(1, data), (2, data), (3, b"")]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent_however_it_ends(number):
    parent = subprocess.Popen([sys.executable, "-m", "tests.data_prep.pool_tasks"], env=ENVIRONMENT)
    pids: list[int] = []
    for _ in range(300):
        pids = workers_of(parent.pid)
        if len(pids) == 3:
            break
        time.sleep(0.05)
    assert len(pids) == 3
    time.sleep(0.5)  # they are at work
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(pids[0], polite)
    time.sleep(0.1)
    assert not has_ended(pids[0]), "a signal to the whole job is for the parent to act on"
    parent.send_signal(number)
    parent.wait()
    end = time.monotonic() + 5
    while time.monotonic() < end and not all(map(has_ended, pids)):
        time.sleep(0.05)
    assert all(map(has_ended, pids))
