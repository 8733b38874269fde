"""What runs out is named once, with its limit; work goes on with the threads there are, or ends with an error."""

import _thread
import errno
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from coca_train.runtime import entry, shortage, threads
from coca_train.runtime.errors import DataError
from coca_train.runtime.threads import Thread, Worker, map_in_threads

ERRORS: dict[str, tuple[BaseException, str | None]] = {
    "memory": (MemoryError(), shortage.MEMORY),
    "memory of torch": (
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        shortage.MEMORY,
    ),
    "memory of a map": (OSError(errno.ENOMEM, "Cannot allocate memory"), shortage.MEMORY),
    "threads": (RuntimeError("can't start new thread"), shortage.THREADS),
    "processes": (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), shortage.THREADS),
    "descriptors": (OSError(errno.EMFILE, "Too many open files", "a/b.idx"), shortage.FILES),
    "descriptors of the machine": (OSError(errno.ENFILE, "Too many open files in system"), shortage.FILES),
    "locks": (OSError(errno.ENOLCK, "No locks available"), shortage.LOCKS),
    "a full disk": (OSError(errno.ENOSPC, "No space left on device"), None),
    "a bug": (RuntimeError("shapes differ"), None),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_ran_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    error, what = ERRORS[name]
    assert shortage.shortage(error) == what

    def fail(argv: list[str]) -> None:
        raise error

    code, said = entry.run(fail, []), capsys.readouterr().err
    if what is not None:
        assert code == 8 and said.startswith(f"E-RUN-30 out of {what} ") and said.count("\n") == 1
        assert shortage.FIX[what] in said
    else:
        assert code == (7 if isinstance(error, OSError) else 1)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let so many more threads start, and no other."""
    start = _thread.start_new_thread

    def allow(n_more: int) -> None:
        left = iter(range(n_more))

        def start_one(*arguments: Any) -> int:
            if next(left, None) is None:
                raise RuntimeError("can't start new thread")
            return start(*arguments)

        monkeypatch.setattr(threads._thread, "start_new_thread", start_one)

    return allow


@pytest.mark.parametrize("n_more", [0, 1, 3])
def test_work_is_done_by_the_threads_there_are(scarce: Callable[[int], None], n_more: int) -> None:
    scarce(n_more)
    used = set[int]()

    def square(number: int) -> int:
        time.sleep(0.002)
        used.add(threading.get_ident())
        return number * number

    assert map_in_threads(square, range(20), 4) == [number * number for number in range(20)]
    assert len(used) == n_more + 1
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda number: 1 // (number - 3), range(20), 4)
    assert map_in_threads(square, [], 4) == []


def test_a_thread_that_never_begins_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that dies of a want of memory before its first line."""
    monkeypatch.setattr(threads._thread, "start_new_thread", lambda action, arguments: 1)
    monkeypatch.setattr(threads, "START_S", 0.05)
    with pytest.raises(RuntimeError, match="can't start new thread: it did not begin"):
        Thread(lambda: None)


def test_a_worker_does_one_task_after_the_other() -> None:
    gate, done = threading.Event(), list[int]()
    with Worker() as worker:
        first = worker.submit(lambda: gate.wait(30) and done.append(1))
        second = worker.submit(lambda: done.append(2))
        failed = worker.submit(lambda: 1 // 0)
        last = worker.submit(lambda: "last")
        first.join(0.01)
        assert not first.is_done() and not second.is_done()
        gate.set()
        assert last.result() == "last" and done == [1, 2]
        assert failed.is_done() and first.seconds > 0
        with pytest.raises(ZeroDivisionError):
            failed.result()
    worker._thread.join(30)
    assert not worker._thread.is_alive()


def test_contexts_in_a_circle() -> None:
    one, other = DataError("E-TOK-01 a"), DataError("E-TOK-02 b")
    one.__cause__, other.__cause__ = other, one
    assert shortage.lacking(one) is None
    other.__cause__ = OSError(errno.EMFILE, "Too many open files")
    lack = shortage.lacking(one)
    assert lack is not None and "open files" in str(lack)
    held = DataError("E-RAW-01 another process works there")
    held.__context__ = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    assert shortage.lacking(held) is None
