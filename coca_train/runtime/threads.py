"""Threads whose start ends: where the machine gives none, or one that never begins, it is a RuntimeError.

`threading.Thread.start` waits without a limit for the first line of its thread, which one that lacks memory never runs.
"""

import _thread
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

START_S = 30.0  # a thread begins within milliseconds, on a loaded machine within seconds

T = TypeVar("T")
Item = TypeVar("Item")


class Thread:
    """A thread that runs `action` from now on, and does not keep the process from ending."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._begun, self._running = _thread.allocate_lock(), _thread.allocate_lock()
        self._begun.acquire()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())
        if not self._begun.acquire(timeout=START_S):
            raise RuntimeError(f"can't start new thread: it did not begin within {START_S:g} s")

    def _run(self) -> None:
        self._begun.release()
        try:
            self._action()
        finally:
            self._running.release()

    def is_alive(self) -> bool:
        return self._running.locked()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end, for timeout_s [seconds] at most."""
        if self._running.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._running.release()


class Task(Generic[T]):
    """An action that a worker does. seconds: its duration, once it is done."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action, self._result = action, list[T]()
        self._error: BaseException | None = None
        self.seconds = 0.0
        self._waiting = _thread.allocate_lock()
        self._waiting.acquire()

    def run(self) -> None:
        """Do it. For the worker."""
        began = time.monotonic()
        try:
            self._result.append(self._action())
        except BaseException as error:  # raised by `result`, in the thread that asks
            self._error = error
        self.seconds = time.monotonic() - began
        self._waiting.release()

    def is_done(self) -> bool:
        return not self._waiting.locked()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it is done, for timeout_s [seconds] at most."""
        if self._waiting.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._waiting.release()

    def result(self) -> T:
        """Wait until it is done and return its result. Raises what the action raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


class Worker:
    """A thread that does one task after the other: a context manager. Raises RuntimeError where there is no thread."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = Thread(self._work)

    def submit(self, action: Callable[[], T]) -> Task[T]:
        """Have an action done after those before it."""
        task = Task(action)
        self._tasks.put(task.run)
        return task

    def _work(self) -> None:
        while (run := self._tasks.get()) is not None:
            run()

    def close(self) -> None:
        """Let the thread end once all is done, without waiting for it."""
        self._tasks.put(None)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def map_in_threads(action: Callable[[Item], T], items: Iterable[Item], n_threads: int) -> list[T]:
    """Return the action's result for each item, from this thread and up to n_threads - 1 more, as many as the machine
    gives. Raises the error of the first item that has one."""
    todo: Sequence[Item] = list(items)
    tasks = [Task(lambda item=item: action(item)) for item in todo]
    left = iter(tasks)  # each is taken by one thread: the interpreter's lock is held while an iterator advances

    def work() -> None:
        for task in left:
            task.run()

    try:
        for _ in range(min(n_threads, len(todo)) - 1):
            Thread(work)
    except RuntimeError:
        pass  # those there are do it, and this one
    work()
    return [task.result() for task in tasks]
