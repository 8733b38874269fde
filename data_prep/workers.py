"""Work done by other processes, its results in the order of the tasks.

    with closing(map_ordered(Encoder, (settings,), tasks, workers=8)) as results:
        for ticket, encoded in results: ...

Processes are spawned, not forked: no locks and no file descriptors come along. Each worker has a pipe of its own and a
thread here that serves it, so that it gets its next task while this process is busy elsewhere. A worker that loses its
parent ends at once, however the parent ended.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Generic, TypeVar

from coca_train.runtime.errors import PeerLost, UserError
from coca_train.runtime.machine import bounded_processes, cores

Ticket = TypeVar("Ticket")
Task = TypeVar("Task")
Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # to a whole group or job; the main process acts on them
ENDED_S = 5.0
CHECK_S = 0.2  # between two looks at whether to stop, while a result is waited for
WORKER_BYTES = 50_000_000  # of a worker alone; with a chunk 8 of its bytes for each of the text (4 and 16 MiB measured)
CHUNK_FACTOR = 8


def map_ordered(
    make: Callable[..., Callable[[Task], Result]],
    arguments: tuple[object, ...],
    tasks: Iterable[tuple[Ticket, Task]],
    workers: int | None,
    *,
    chunk_bytes: int = 0,
    check: Callable[[], None] = lambda: None,
) -> Generator[tuple[Ticket, Result], None, None]:
    """Yield (ticket, make(*arguments)(task)) for every (ticket, task) of tasks, in their order.

    make(*arguments) is called once in each worker; the ticket stays here. At most 2 x workers + 2 tasks are on their
    way. workers: None = one a core; 1 = everything in this process; as many are started as there are tasks, and no more
    than the machine serves (runtime/machine.py). chunk_bytes: text in a task. An error of a task or of `tasks` itself
    is raised when everything before it was handed out, so it is the same for any number of workers.
    check: called before a worker is started and while a result is waited for; what it raises ends the work at once.
    Close the generator to leave early: the workers are killed. Raises PeerLost E-RUN-25 when a worker is lost.
    """
    bytes_each = WORKER_BYTES + CHUNK_FACTOR * chunk_bytes
    workers = bounded_processes("work.workers", cores() if workers is None else workers, bytes_each)
    if workers == 1:
        call = make(*arguments)
        for ticket, task in tasks:
            yield ticket, call(task)
        return
    # One thread for each worker waits at its pipe: a worker has its next task while this process reads or writes.
    idle: SimpleQueue[_Worker[Task, Result]] = SimpleQueue()
    started: list[_Worker[Task, Result]] = []
    threads = futures.ThreadPoolExecutor(workers)

    def ask(task: Task) -> Result:
        worker = idle.get()
        try:
            return worker.ask(task)
        finally:
            idle.put(worker)

    def submit(task: Task) -> "futures.Future[Result]":
        if len(started) < workers:
            check()
            started.append(_Worker(make, arguments))
            idle.put(started[-1])
        return threads.submit(ask, task)

    try:
        yield from _in_order(submit, iter(tasks), 2 * workers + 2, check)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        # Threads wait in recv(); a killed worker closes its pipe, which wakes them, and only then can they be joined.
        for worker in started:
            worker.kill()
        threads.shutdown()
        for worker in started:
            worker.close()


def _in_order(
    submit: Callable[[Task], "futures.Future[Result]"],
    tasks: Iterator[tuple[Ticket, Task]],
    limit: int,
    check: Callable[[], None],
) -> Iterator[tuple[Ticket, Result]]:
    waiting: deque[tuple[Ticket, futures.Future[Result]]] = deque()
    failure: Exception | None = None
    more = True
    while True:
        while more and len(waiting) < limit:
            try:
                ticket, task = next(tasks)
            except StopIteration:
                more = False
            except Exception as error:
                more, failure = False, error
            else:
                waiting.append((ticket, submit(task)))
                del task  # the thread that sends it holds it now
        if not waiting:
            break
        ticket, future = waiting.popleft()
        while not futures.wait([future], CHECK_S).done:
            check()
        yield ticket, future.result()
        del future
    if failure is not None:
        raise failure


class _Worker(Generic[Task, Result]):
    """A worker process as its parent sees it."""

    def __init__(self, make: Callable[..., Callable[[Task], Result]], arguments: tuple[object, ...]) -> None:
        resource_tracker.ensure_running()  # started with the first process, it would let signals through
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        try:
            with _signals_later():
                self._process.start()
        except OSError as error:
            raise PeerLost(
                f"E-RUN-25 worker process: could not be started ({error.strerror}); memory, processes (ulimit -u) or "
                "open files (ulimit -n) ran out. Fix: run the same command again, with fewer work.workers"
            ) from error
        theirs.close()

    def ask(self, task: Task) -> Result:
        """Return the worker's answer to a task; raise what the worker raised."""
        try:
            self._connection.send(task)
            good, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(ENDED_S)
            code = self._process.exitcode
            how = (
                f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
            )
            raise PeerLost(
                f"E-RUN-25 worker process {self._process.pid}: ended {how} in the middle of its work; when nobody "
                "killed it, memory ran out. Fix: run the same command again, with fewer work.workers if memory is short"
            ) from error
        if not good:
            raise answer
        return answer

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.join()
        self._connection.close()


@contextmanager
def _signals_later() -> Iterator[None]:
    """Start processes that ignore these signals for life; signals that come meanwhile reach this process afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    connection: Connection, make: Callable[..., Callable[[Task], Result]], arguments: tuple[object, ...]
) -> None:
    """Serve tasks until the parent closes the connection: the main loop of a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    call: Callable[[Task], Result] | None = None
    with suppress(EOFError, OSError):  # the parent is gone, or needs no more
        while True:
            task = connection.recv()
            try:
                call = make(*arguments) if call is None else call
                answer = (True, call(task))
            except UserError as error:
                answer = (False, error)
            except Exception:
                answer = (False, RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))
            del task
            connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
