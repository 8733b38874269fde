"""Work done by other processes, its results in the order of the tasks.

    with closing(ordered(Encoder, (settings,), tasks, workers=8)) as results:
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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from coca_train.runtime.errors import PeerLost, UserError
from coca_train.runtime.threads import cores

Ticket = TypeVar("Ticket")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # to a whole group or job; the main process acts on them
ENDED_S = 5.0


def ordered(
    make: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    tasks: Iterable[tuple[Ticket, Any]],
    workers: int | None,
) -> Generator[tuple[Ticket, Any], None, None]:
    """(ticket, make(*arguments)(argument)) for every (ticket, argument) of tasks, in their order.

    make(*arguments) is called once in each worker; the ticket stays here. At most 2 x workers + 2 tasks are on their
    way. workers: None = one a core; 1 = everything in this process. An error of a task or of `tasks` itself is raised
    when everything before it was handed out, so it is the same for any number of workers.
    Close the generator to leave early: the workers are killed. Raises PeerLost E-RUN-25 when a worker is lost.
    """
    workers = cores() if workers is None else workers
    if workers == 1:
        call = make(*arguments)
        for ticket, argument in tasks:
            yield ticket, call(argument)
        return
    # One thread for each worker waits at its pipe: a worker has its next task while this process reads or writes.
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started: list[_Worker] = []
    threads = ThreadPoolExecutor(workers)

    def ask(argument: Any) -> Any:
        worker = idle.get()
        try:
            return worker.ask(argument)
        finally:
            idle.put(worker)

    try:
        for _ in range(workers):
            started.append(_Worker(make, arguments))
            idle.put(started[-1])
        yield from _in_order(lambda argument: threads.submit(ask, argument), iter(tasks), 2 * workers + 2)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        # Threads wait in recv(); a killed worker closes its pipe, which wakes them, and only then can they be joined.
        for worker in started:
            worker.kill()
        threads.shutdown()
        for worker in started:
            worker.close()


def _in_order(submit: Callable[[Any], "Future[Any]"], tasks: Iterator[tuple[Ticket, Any]], limit: int) -> Iterator[Any]:
    waiting: deque[tuple[Ticket, Future[Any]]] = deque()
    failure: Exception | None = None
    more = True
    while True:
        while more and len(waiting) < limit:
            try:
                ticket, argument = next(tasks)
            except StopIteration:
                more = False
            except Exception as error:
                more, failure = False, error
            else:
                waiting.append((ticket, submit(argument)))
                del argument  # the thread that sends it holds it now
        if not waiting:
            break
        ticket, future = waiting.popleft()
        yield ticket, future.result()
        del future
    if failure is not None:
        raise failure


class _Worker:
    """A process, seen from here."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        resource_tracker.ensure_running()  # started with the first process, it would let signals through
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        with _signals_later():
            self._process.start()
        theirs.close()

    def ask(self, argument: Any) -> Any:
        """Its answer to one task; what it raised is raised here."""
        try:
            self._connection.send(argument)
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
        self._process.join()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _signals_later() -> Iterator[None]:
    """A process started here is deaf to these signals for life; what comes meanwhile reaches this one afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """The life of a worker."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    call: Callable[[Any], Any] | None = None
    with suppress(EOFError, OSError):  # the parent is gone, or needs no more
        while True:
            argument = connection.recv()
            try:
                call = make(*arguments) if call is None else call
                answer = (True, call(argument))
            except UserError as error:
                answer = (False, error)
            except Exception:
                answer = (False, RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))
            del argument
            connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
