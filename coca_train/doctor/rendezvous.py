"""A meeting of all ranks whose every wait is bounded, and which names the rank that is missing."""

import contextlib
import faulthandler
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore

from coca_train.doctor.table import rank_ranges
from coca_train.runtime import dist
from coca_train.runtime.errors import PeerLost, UserError

T = TypeVar("T")
BEAT_S = 0.5  # between two signs of life of a rank
SILENCE_S = 4.0  # a rank without a sign of life in this time is gone
ANSWER_S = 5.0  # for the store itself
PROGRESS_S = 5.0  # a part that takes longer says so
POLL_S = (0.002, 0.25)  # between two looks at the store, rising


class Rendezvous:
    """`with Rendezvous(meet_s) as ranks`: all ranks meet, then compare values with `gather_and_decide`.

    `begin` bounds the part that follows. A thread of each rank gives signs of life, another one ends the process with
    exit code 76 when a part takes too long. Rank 0 then names the rank that is silent or behind (where rank 0 is
    missing, the others do).

    Raises UserError E-DOC-02 when the environment names no meeting place, PeerLost E-DOC-01 when rank 0 is missing.
    """

    def __init__(self, meet_s: float) -> None:
        self.rank, self.size = dist.rank(), dist.world_size()
        self.before_exit: Callable[[], None] = lambda: None  # rank 0 calls it before it ends for a missing rank
        self._meet_s = meet_s
        self._step = 0  # counts the gatherings of this rank
        self._part: tuple[str, float, float] | None = None  # name, start, limit [s]
        self._stop = threading.Event()
        self._store: Any = None

    def __enter__(self) -> "Rendezvous":
        _refuse_bare_srun()
        if self.size > 1:
            # Two connections: a connection serves one request at a time, and signs of life must not wait.
            self._store, self._signs = self._connect(is_first=True), self._connect(is_first=False)
            self._signs.set(f"step/{self.rank}", "0")
            self._signs.set(f"beat/{self.rank}", "0")
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()
        self.begin("the meeting of the ranks", self._meet_s)
        self.wait_for_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._part = None
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def begin(self, name: str, limit_s: float) -> None:
        """Begin a part that may take limit_s seconds."""
        self._part = (name, time.monotonic(), limit_s)

    def gather_and_decide(self, value: Any, decide: Callable[[list[Any]], T]) -> T:
        """COLLECTIVE. Return on every rank what rank 0 decides by the values of all ranks. Both travel as JSON."""
        if self._store is None:
            return decide([value])
        self._step += 1
        answer = f"decision/{self._step}"
        try:
            self._store.set(f"value/{self._step}/{self.rank}", json.dumps(value))
            self._signs.set(f"step/{self.rank}", str(self._step))
            if self.rank:
                self._wait([answer])
                return json.loads(self._store.get(answer))
            keys = [f"value/{self._step}/{rank}" for rank in range(self.size)]
            self._wait(keys)
            decision = decide([json.loads(self._store.get(key)) for key in keys])
            self._store.set(answer, json.dumps(decision))
            return decision
        except (RuntimeError, OSError) as error:
            raise self._lost(f"the meeting place does not answer ({_first_line(error)})") from None

    def wait_for_all(self) -> None:
        """COLLECTIVE. Return when all ranks have come here, so that what they measure next is measured at once."""
        self.gather_and_decide(None, lambda _: None)

    def leave(self) -> None:
        """COLLECTIVE, the last: rank 0, which may hold the store, leaves after the others have read everything."""
        if self._store is None:
            return
        if self.rank:
            self._store.set(f"left/{self.rank}", "")
        else:
            self._wait([f"left/{rank}" for rank in range(1, self.size)])

    def _wait(self, keys: list[str]) -> None:
        """Poll until all keys are there; a blocking wait would keep the connection busy."""
        pause = POLL_S[0]
        while not self._store.check(keys):
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_S[1])

    def _connect(self, is_first: bool) -> Any:
        """Connect to the store that the process group will use too; under torchrun the launcher holds it."""
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if missing or not port.isdecimal() or not 0 < int(port) < 2**16:
            what = f"{', '.join(missing)} not set" if missing else f"MASTER_PORT={port!r} is no port"
            raise UserError(
                f"E-DOC-02 environment WORLD_SIZE={self.size}: {what}; the ranks cannot meet. "
                f"Fix: torchrun --nproc_per_node {self.size} -m coca_train doctor …"
            )
        # As the process group gets it. A function of the package hides the name of this module.
        module: Any = importlib.import_module("torch.distributed.rendezvous")
        try:
            store = module.TCPStore(
                host,
                int(port),
                is_master=self.rank == 0 and is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
                timeout=timedelta(seconds=self._meet_s),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (RuntimeError, OSError) as error:
            if self.rank == 0:
                raise UserError(
                    f"E-DOC-02 environment MASTER_ADDR/MASTER_PORT {host}:{port}: rank 0 cannot open the meeting place "
                    f"({_first_line(error)}). Fix: MASTER_PORT=<one that is free>, the same on all ranks"
                ) from None
            raise self._lost(f"rank 0 did not come to {host}:{port} within {self._meet_s:g} s") from None
        return PrefixStore(f"doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _lost(self, what: str) -> PeerLost:
        return PeerLost(
            f"E-DOC-01 rank {self.rank}: {what}. Fix: look at the first error of the other ranks, then run the same "
            "command again"
        )

    def _beat(self) -> None:
        beat = 0
        while self._store is not None and not self._stop.wait(BEAT_S):
            beat += 1
            with contextlib.suppress(RuntimeError, OSError):  # the main thread reports a lost store
                self._signs.set(f"beat/{self.rank}", str(beat))

    def _watch(self) -> None:
        next_line_s = PROGRESS_S
        while not self._stop.wait(BEAT_S):
            if (part := self._part) is None:
                continue
            name, began, limit_s = part
            passed_s = time.monotonic() - began
            if passed_s < PROGRESS_S:
                next_line_s = PROGRESS_S
            elif passed_s >= next_line_s:
                dist.log(f"doctor    {name}: {passed_s:.0f} s of at most {limit_s:g} s")
                next_line_s *= 2
            if passed_s > limit_s:
                try:
                    self._report_overdue(name, limit_s)
                finally:
                    # Not sys.exit: the main thread may hang in a collective, and would never see it.
                    os._exit(PeerLost.exit_code)

    def _report_overdue(self, name: str, limit_s: float) -> None:
        """Name the missing ranks: rank 0 does, or the others where rank 0 is missing itself."""
        absent = [0] if self._store is None else self._absent_ranks()
        if self.rank == 0 or absent is None or {0, self.rank} & set(absent):
            if absent is None:
                who, what = "rank 0", "the meeting place, which it holds, gives no answer"
            elif absent:
                who = f"rank{'s' * (len(absent) > 1)} {rank_ranges(absent)}"
                what = f"did not finish {name} within {limit_s:g} s, the others did"
                what = what if self.size > 1 else f"{name} did not end within {limit_s:g} s"
            else:
                who, what = "all ranks", f"began {name} together, and it did not end within {limit_s:g} s"
            if self.rank == 0:
                self.before_exit()
            print(
                f"E-DOC-01 {who}: {what}. Fix: look at that rank's machine and its log (without the rank the run would "
                "hang too), then run the same command again, with a larger limit_s if it was only slow",
                file=sys.__stderr__,
                flush=True,
            )
            if absent and self.rank in absent:
                faulthandler.dump_traceback(all_threads=True)
        if self.rank == 0 and self.size > 1:
            time.sleep(2 * SILENCE_S)  # the others still look at the store, which this process may hold

    def _absent_ranks(self) -> list[int] | None:
        """Return the ranks that are silent, else those that are behind; None when the store gives no answer."""

        def look() -> list[int]:
            before = self._read("beat")
            time.sleep(SILENCE_S)
            return find_behind(before, self._read("beat"), self._read("step"))

        try:
            return run_bounded(look, SILENCE_S + ANSWER_S)
        except (RuntimeError, OSError, Overdue):
            return None

    def _read(self, sign: str) -> list[int]:
        """Return what each rank last wrote; -1 where it has not come at all."""
        keys = [f"{sign}/{rank}" for rank in range(self.size)]
        return [int(self._signs.get(key)) if self._signs.check([key]) else -1 for key in keys]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _refuse_bare_srun() -> None:
    """Refuse tasks of srun that have no rank: each would examine its machine alone."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" not in os.environ and tasks.isdecimal() and int(tasks) > 1:
        raise UserError(
            f"E-DOC-02 environment SLURM_STEP_NUM_TASKS={tasks}: srun has started {tasks} tasks, and RANK is not set; "
            "the ranks cannot meet. Fix: sbatch … launch/slurm/train.sbatch doctor …, which sets what they need"
        )


def find_behind(before: Sequence[int], after: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Return the ranks whose sign of life did not change, else those that have done fewer steps than others.

    None of them where all live and have come equally far: they hang in what they do together.
    """
    silent = [rank for rank in range(len(after)) if after[rank] == before[rank]]
    return silent or [rank for rank, step in enumerate(steps) if step < max(steps)]


class Overdue(Exception):
    """A local measurement did not end in time."""


def run_bounded(action: Callable[[], T], limit_s: float) -> T:
    """Return the result of an action of this rank alone, or raise its exception, or Overdue after limit_s seconds.

    What hangs in the kernel (a disk, a network folder) cannot be stopped: its thread is left behind.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(action())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise Overdue(f"no answer within {limit_s:g} s")
    return results[0]
