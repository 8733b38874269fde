"""Who is here: ranks that talk through the store of their meeting place, each wait bounded, who is missing named."""

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

from coca_train.runtime import dist
from coca_train.runtime.errors import PeerLost, UserError

T = TypeVar("T")
BEAT_S = 0.5
SIGN_S = 4.0  # without a beat in this time a rank counts as gone, once time is up
ANSWER_S = 5.0  # for the store itself
PROGRESS_S = 5.0
STEPS_S = (0.002, 0.25)  # between two looks, rising


class Roll:
    """`with Roll(meet_s) as roll`: all ranks meet; `part` bounds what follows, `agree` gathers and answers.

    Threads of each rank tell that it lives, and end it with exit code 76 when a part takes too long: whoever is behind,
    or gives no sign of life, is named by rank 0 (by the others where rank 0 is missing).

    Raises UserError E-DOC-02 where the launcher's environment leads nowhere, PeerLost E-DOC-01 where rank 0 is missing.
    """

    def __init__(self, meet_s: float) -> None:
        self.rank, self.size = dist.rank(), dist.world_size()
        self._meet_s = meet_s
        self._step = 0  # of this rank: counts what all ranks come to
        self._part: tuple[str, float, float] | None = None  # name, when it began, its limit
        self._stop = threading.Event()
        self._store: Any = None
        self.last_words: Callable[[], None] = lambda: None  # rank 0, before it ends because another is missing

    def __enter__(self) -> "Roll":
        _refuse_bare_srun()
        if self.size > 1:
            self._store, self._beats = self._meet(is_first=True), self._meet(is_first=False)
            self._beats.set(f"step/{self.rank}", "0")
            self._beats.set(f"beat/{self.rank}", "0")
        # Two threads: this rank must give signs of life while it looks who else does.
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._guard)]
        for thread in self._threads:
            thread.start()
        self.part("the meeting of the ranks", self._meet_s)
        self.agree(None, lambda values: None)
        return self

    def __exit__(self, *_: object) -> None:
        self._part = None
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def part(self, name: str, limit_s: float) -> None:
        """What follows, up to the next part, must end within limit_s [seconds] on every rank."""
        self._part = (name, time.monotonic(), limit_s)

    def agree(self, value: Any, decide: Callable[[list[Any]], T]) -> T:
        """COLLECTIVE. Rank 0 decides by the values of all ranks; its decision, on every rank. Plain data, as JSON."""
        if self._store is None:
            return decide([value])
        self._step += 1
        number, answer = self._step, f"decision/{self._step}"
        try:
            self._store.set(f"value/{number}/{self.rank}", json.dumps(value))
            self._beats.set(f"step/{self.rank}", str(number))
            if self.rank:
                self._wait([answer])
                return json.loads(self._store.get(answer))
            keys = [f"value/{number}/{rank}" for rank in range(self.size)]
            self._wait(keys)
            decision = decide([json.loads(self._store.get(key)) for key in keys])
            self._store.set(answer, json.dumps(decision))
            return decision
        except (RuntimeError, OSError) as error:
            raise self._lost(f"the meeting place does not answer ({str(error).splitlines()[0][:120]})") from None

    def leave(self) -> None:
        """COLLECTIVE, the last: rank 0, which may hold the store, leaves after the others have read everything."""
        if self._store is None:
            return
        if self.rank:
            self._store.set(f"left/{self.rank}", "")
        else:
            self._wait([f"left/{rank}" for rank in range(1, self.size)])

    def _wait(self, keys: list[str]) -> None:
        """Until all are there; the thread ends the process where that takes too long."""
        # Looked at again and again, not waited for in the store: it does one thing at a time for a process.
        pause = STEPS_S[0]
        while not self._store.check(keys):
            time.sleep(pause)
            pause = min(1.5 * pause, STEPS_S[1])

    def _meet(self, is_first: bool) -> Any:
        """A connection to the store that the process group will use too; under torchrun the launcher holds it."""
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if missing or not port.isdecimal() or not 0 < int(port) < 2**16:
            what = f"{', '.join(missing)} not set" if missing else f"MASTER_PORT={port!r} is no port"
            raise UserError(
                f"E-DOC-02 environment WORLD_SIZE={self.size}: {what}; the ranks cannot meet. "
                f"Fix: torchrun --nproc_per_node {self.size} -m coca_train doctor …"
            )
        c10d: Any = importlib.import_module("torch._C._distributed_c10d")
        # By its module, whose name a function of the package hides.
        rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
        of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            store = rendezvous.TCPStore(
                host,
                int(port),
                is_master=self.rank == 0 and is_first and not of_launcher,
                timeout=timedelta(seconds=self._meet_s),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (RuntimeError, OSError) as error:
            if self.rank == 0:
                raise UserError(
                    f"E-DOC-02 environment MASTER_ADDR/MASTER_PORT {host}:{port}: rank 0 cannot open the meeting place "
                    f"({str(error).splitlines()[0][:120]}). Fix: MASTER_PORT=<one that is free>, the same on all ranks"
                ) from None
            raise self._lost(f"rank 0 did not come to {host}:{port} within {self._meet_s:g} s") from None
        return c10d.PrefixStore(f"doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _lost(self, what: str) -> PeerLost:
        return PeerLost(
            f"E-DOC-01 rank {self.rank}: {what}. Fix: look at the first error of the other ranks, then run the same "
            "command again"
        )

    def _beat(self) -> None:
        beat = 0
        while self._store is not None and not self._stop.wait(BEAT_S):
            beat += 1
            with contextlib.suppress(RuntimeError, OSError):  # the main thread tells
                self._beats.set(f"beat/{self.rank}", str(beat))

    def _guard(self) -> None:
        shown_s = PROGRESS_S
        while not self._stop.wait(BEAT_S):
            if (part := self._part) is None:
                continue
            name, began, limit_s = part
            passed_s = time.monotonic() - began
            if passed_s < PROGRESS_S:
                shown_s = PROGRESS_S
            elif passed_s >= shown_s:
                dist.log(f"doctor    {name}: {passed_s:.0f} s of at most {limit_s:g} s")
                shown_s *= 2
            if passed_s > limit_s:
                try:
                    self._overdue(name, limit_s)
                finally:
                    # Not sys.exit: the main thread may hang in a collective, and would never see it.
                    os._exit(PeerLost.exit_code)

    def _overdue(self, name: str, limit_s: float) -> None:
        """Name who is missing: rank 0 does, or who is left where that is rank 0."""
        absent = [0] if self._store is None else self._absent()
        if self.rank == 0 or absent is None or {0, self.rank} & set(absent):
            if absent is None:
                who, what = "rank 0", "the meeting place, which it holds, gives no answer"
            elif absent:
                who = f"rank{'s' * (len(absent) > 1)} {in_words(absent)}"
                what = f"did not come to the end of {name} within {limit_s:g} s, the others did"
                what = what if self.size > 1 else f"{name} did not end within {limit_s:g} s"
            else:
                who, what = "all ranks", f"came to {name}, and it did not end within {limit_s:g} s"
            if self.rank == 0:
                self.last_words()
            print(
                f"E-DOC-01 {who}: {what}. Fix: look at that rank's machine and its log (without the rank the run would "
                "hang too), then run the same command again, with a larger limit_s if it was only slow",
                file=sys.__stderr__,
                flush=True,
            )
            if absent and self.rank in absent:
                faulthandler.dump_traceback(all_threads=True)
        if self.rank == 0 and self.size > 1:
            time.sleep(2 * SIGN_S)  # the others look at the store of this process

    def _absent(self) -> list[int] | None:
        """Ranks that give no sign of life, else those that are behind; None: the store gives no answer."""
        answers: list[list[int]] = []

        def look() -> None:
            try:
                before = [self._number(f"beat/{rank}") for rank in range(self.size)]
                time.sleep(SIGN_S)
                after = [self._number(f"beat/{rank}") for rank in range(self.size)]
                steps = [self._number(f"step/{rank}") for rank in range(self.size)]
            except (RuntimeError, OSError):
                return
            answers.append(behind(before, after, steps))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(SIGN_S + ANSWER_S)
        return answers[0] if answers else None

    def _number(self, key: str) -> int:
        """What a rank last wrote there; -1: it has not come at all."""
        return int(self._beats.get(key)) if self._beats.check([key]) else -1


def _refuse_bare_srun() -> None:
    """Tasks of srun that nobody told their ranks would each examine their machine alone."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" not in os.environ and tasks.isdecimal() and int(tasks) > 1:
        raise UserError(
            f"E-DOC-02 environment SLURM_STEP_NUM_TASKS={tasks}: srun has started {tasks} tasks, and RANK is not set; "
            "the ranks cannot meet. Fix: sbatch … launch/slurm/train.sbatch doctor …, which sets what they need"
        )


def behind(before: Sequence[int], after: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Ranks whose beats stood still from before to after, else those that have done fewer steps than others.

    Nobody where all live and came as far: they hang in what they do together.
    """
    silent = [rank for rank in range(len(after)) if after[rank] == before[rank]]
    return silent or [rank for rank, step in enumerate(steps) if step < max(steps)]


def in_words(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


class Overdue(Exception):
    """A local measurement did not end in time."""


def bounded(action: Callable[[], T], limit_s: float) -> T:
    """The result of an action of this rank alone, or its exception; Overdue after limit_s [seconds].

    What hangs in the kernel (a disk, a network folder) cannot be stopped; it is left behind in its thread.
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
