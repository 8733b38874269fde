"""Jobs of the shipped script on a real Slurm, each struck at a random moment: how each kind ends, and with what."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coca_train.runtime.printing import markdown
from tests.faults import real
from tests.slurm.cluster import GOES_ON, ROOT, Cluster, wait_for

SCRIPT = ROOT / "launch/slurm/train.sbatch"
STEPS = 160
TOGETHER = 4  # jobs at a time: the ranks of one leave a core idle while they wait for each other
PATIENCE_S = 900
# A node takes no job whose credential is of the second in which it revoked the last one: that is what Slurm's own two
# minutes before a queued job starts again are for.
REVOKED_S = 5
OVERSUBSCRIBED = 4  # busy loops for each core

KINDS = (
    *("scancel --signal", "partition preemption", "time limit", "node down", "rank SIGKILL", "launcher SIGKILL"),
    *("SIGSTOP", "TERM in the first 10 s", "plain scancel", "user error"),
)
OF_ALL_JOBS = ("partition preemption", "node down")  # what strikes one job strikes every job of the cluster
MISTAKES = {
    2: ["optim.no_such_option=1"],
    3: ["data.tokenizer=/no/such/tokenizer.model"],
    5: ["optim.lr=1e30", "optim.warmup_steps=0", "engine.max_skipped_steps=2", "engine.dtype=fp32"],
}


@dataclass
class Job:
    """One job of the campaign and what became of it."""

    name: str
    kind: str
    ranks: int
    busy: bool
    seed: int
    id: str = ""
    struck: str = ""
    ended: dict[str, str] = field(default_factory=dict)
    verdict: str = ""  # empty: as it must be
    late: bool = False  # it had done everything when it was struck
    identical: bool | None = None


class Campaign:
    """words: overrides of the training. reference: by world size, the final state of a run that nothing struck."""

    def __init__(self, slurm: Cluster, folder: Path, words: Sequence[str]) -> None:
        self.slurm, self.folder = slurm, folder
        self.words = [*words, f"run.root={folder}/runs", f"train.max_steps={STEPS}", "eval.every_steps=80",
                      "checkpoint.save_every_steps=40", "engine.timeout_s=60", "train.micro_batch_size=1"]  # fmt: skip
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "WAIT_S": "75",
        }
        self.reference: dict[int, object] = {}
        self._calls = threading.Lock()  # one call at a time keeps the controller answering on a busy machine

    def call(self, *words: str, check: bool = False) -> str:
        with self._calls:
            return self.slurm.call(*words, check=check)

    def submit(self, name: str, ranks: int, *words: str, limit: str = "60", **environment: str) -> str:
        with self._calls:
            return self.slurm.submit(
                "--nodes=2", f"--ntasks-per-node={ranks // 2}", f"--time={limit}", "--output=%j.log", str(SCRIPT),
                *self.words, f"run.name={name}", *words, cwd=self.folder, **self.environment, **environment,
            )  # fmt: skip

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def step(self, name: str) -> int:
        """The last that has been logged."""
        path = self.folder / "runs" / name / "metrics.jsonl"
        return max([0, *map(int, re.findall(r'"step": (\d+)', path.read_text()))]) if path.exists() else 0

    def refer(self, ranks: int) -> None:
        job = self.submit(f"reference-{ranks}", ranks)
        ended = self.follow(Job(f"reference-{ranks}", "reference", ranks, False, 0, job))
        assert ended["JobState"] == "COMPLETED", self.log(job)
        self.reference[ranks] = real.final_state(self.folder / "runs" / f"reference-{ranks}")

    def follow(self, job: Job) -> dict[str, str]:
        """Until it is over for good. What waits to begin again begins soon, in place of after two minutes."""
        until, waits = time.monotonic() + PATIENCE_S, dict[str, float]()
        while time.monotonic() < until:
            with self._calls:
                shown = self.slurm.job(job.id)
            state = shown.get("JobState", "?")
            if state == "PENDING" and shown.get("Restarts", "0") != "0":
                more = ["TimeLimit=60"] if job.kind == "time limit" else []
                since = waits.setdefault(shown["Restarts"], time.monotonic())
                if (shown.get("Reason") == "BeginTime" or more) and time.monotonic() > since + REVOKED_S:
                    self.call("scontrol", "update", f"job={job.id}", "StartTime=now", *more)
            elif state not in GOES_ON:
                return shown
            time.sleep(1.0)
        self.call("scancel", job.id)
        return {**shown, "JobState": f"HANGS ({state})"}

    def play(self, jobs: Sequence[Job]) -> None:
        """Jobs side by side, each struck, each followed to its end."""
        threads = [threading.Thread(target=self._play, args=(job, jobs)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _play(self, job: Job, together: Sequence[Job]) -> None:
        choose = random.Random(job.seed)
        try:
            words, environment, limit = [], {}, "60"
            code = 0
            if job.kind == "user error":
                code = choose.choice([*MISTAKES])
                words, job.struck = MISTAKES[code], " ".join(MISTAKES[code])
            if job.kind == "time limit":
                # The lead is what is left when the ranks are warned: so the moment is drawn.
                limit, environment = "3", {"LEAD_S": str(180 - choose.randrange(5, 100))}
            job.id = self.submit(job.name, job.ranks, *words, limit=limit, **environment)
            wait_for("its first line", lambda: "start 0" in self.log(job.id), 240)
            if job.kind not in ("user error", "time limit") and (job.kind not in OF_ALL_JOBS or job is together[0]):
                self._wait(job, choose)
                self._strike(job, choose)
            job.ended = self.follow(job)
            job.verdict = self._verdict(job, code)
            if job.ended.get("JobState") == "COMPLETED":
                job.identical = real.final_state(self.folder / "runs" / job.name) == self.reference[job.ranks]
        except Exception as error:  # a thread of its own: told with the table
            job.verdict = f"{type(error).__name__}: {error}"
        print(f"{time.strftime('%H:%M:%S')} {self.told(job)}", flush=True)

    def told(self, job: Job) -> str:
        lines = [line for line in self.log(job.id).splitlines() if re.match("(no )?requeue:", line)]
        return (
            f"{job.name} (job {job.id}, {job.ranks} ranks{', busy' if job.busy else ''}): {job.struck} -> "
            f"{job.ended.get('JobState')}, {job.ended.get('Restarts')} restarts, identical {job.identical} "
            f"{lines} {job.verdict or 'as it must be'}{' (too late)' if job.late else ''}"
        )

    def _wait(self, job: Job, choose: random.Random) -> None:
        """Until the moment that is drawn: some seconds from the start, or a step of the training."""
        if job.kind == "TERM in the first 10 s":
            moment = choose.uniform(0, 10)
            time.sleep(moment)
            job.struck = f"after {moment:.1f} s"
        elif choose.random() < 0.4:
            moment = choose.uniform(0, 60 if job.busy else 15)
            time.sleep(moment)
            job.struck = f"after {moment:.1f} s"
        else:
            step = choose.randrange(STEPS * 3 // 4)
            wait_for(f"step {step}", lambda: self.step(job.name) >= step, 600)
            job.struck = f"at step {step}"

    def _strike(self, job: Job, choose: random.Random) -> None:
        before = self.slurm.state(job.id)
        if job.kind in ("scancel --signal", "TERM in the first 10 s"):
            name = "TERM" if job.kind != "scancel --signal" else choose.choice(["TERM", "USR1"])
            wait_for("a step to signal", lambda: self._signalled(job.id, name), 120)
            job.struck = f"{name} {job.struck}"
        elif job.kind == "plain scancel":
            self.call("scancel", job.id)
        elif job.kind == "partition preemption":
            with self._calls:
                high = self.slurm.submit(
                    "--partition=high", "--nodes=2", "--exclusive", "--wrap=sleep 5", cwd=self.folder
                )
            wait_for("the job that preempts", lambda: self.slurm.state(high) == "COMPLETED", 300)
        elif job.kind == "node down":
            self.call("scontrol", "update", "nodename=c2", "state=down", "reason=campaign")
            time.sleep(5)
            self.call("scontrol", "update", "nodename=c2", "state=resume")
        else:
            rank = choose.randrange(job.ranks)
            pids = self._launcher(job) if job.kind == "launcher SIGKILL" else self._rank(job, rank)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if job.kind == "SIGSTOP" else signal.SIGKILL)
            if job.kind != "launcher SIGKILL":
                job.struck = f"rank {rank} {job.struck}"
        job.struck += f" ({before})"

    def _signalled(self, job: str, name: str) -> bool:
        """Whether there is nothing left to wait for: its ranks have the signal, or it is over already."""
        if ".0" not in self.call("squeue", "-h", "-s", "-j", job):
            return self.slurm.state(job) not in GOES_ON
        self.call("scancel", f"--signal={name}", job)
        return True

    def _rank(self, job: Job, rank: int) -> list[int]:
        """The python of a rank, from the moment its shell has started it."""
        return wait_for(f"rank {rank}", lambda: self._pythons(job, rank), 120)[:1]

    def _pythons(self, job: Job, rank: int) -> list[int]:
        return [pid for pid in self.slurm.processes(f"\0RANK={rank}\0", job=job.id) if name_of(pid) == "python"]

    def _launcher(self, job: Job) -> list[int]:
        return wait_for("the batch script", lambda: self.slurm.batch_script(job.id), 120)

    def _verdict(self, job: Job, code: int) -> str:
        """What is wrong with its end; empty: nothing."""
        state, restarts = job.ended.get("JobState"), int(job.ended.get("Restarts", "-1"))
        if job.kind == "plain scancel":
            return "" if (state, restarts) == ("CANCELLED", 0) else f"{state} after {restarts} restarts"
        if job.kind == "user error":
            right = (state, restarts, job.ended.get("ExitCode")) == ("FAILED", 0, f"{code}:0")
            return "" if right else f"{state} {job.ended.get('ExitCode')} after {restarts} restarts"
        job.late = restarts == 0 and self.log(job.id).count("no requeue: done") == 1
        right = state == "COMPLETED" and (job.late or restarts == 1 or (job.kind == "time limit" and restarts > 0))
        return "" if right else f"{state} after {restarts} restarts"


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class BusyCores:
    """`with BusyCores(8):` loops of normal niceness that want a core each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        command = [sys.executable, "-S", "-c", "while True: pass"]
        self.loops = [subprocess.Popen(command) for _ in range(self.count)]

    def __exit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.kill()
            loop.wait()


def drawn(jobs: int, seed: int) -> list[list[Job]]:
    """Rounds of jobs: kinds in turn, every second round busy, one job of four of each kind with four ranks."""
    kinds = [KINDS[number % len(KINDS)] for number in range(jobs)]
    rounds = []
    for group in (OF_ALL_JOBS[:1], OF_ALL_JOBS[1:], [kind for kind in KINDS if kind not in OF_ALL_JOBS]):
        chosen = [kind for kind in kinds if kind in group]
        random.Random(seed).shuffle(chosen)
        size = TOGETHER if len(group) > 1 else max(1, len(chosen) // 2)  # a quiet round of each, and a busy one
        rounds += [chosen[first : first + size] for first in range(0, len(chosen), size)]
    seen, filled = Counter[str](), []
    for index, each in enumerate(rounds):
        filled.append([])
        for kind in each:
            number = seen.total()
            seen[kind] += 1
            ranks = 4 if seen[kind] % 4 == 2 else 2
            filled[-1].append(Job(f"j{number}", kind, ranks, index % 2 == 1, seed * 1000 + number))
    return filled


def table(jobs: Sequence[Job]) -> str:
    """By kind: jobs, those that ended as they must, finished, identical."""
    columns: dict[str, Callable[[Sequence[Job]], object]] = {
        "jobs": len,
        "busy": lambda of: sum(job.busy for job in of),
        "of 4 ranks": lambda of: sum(job.ranks == 4 for job in of),
        "as it must be": lambda of: sum(not job.verdict for job in of),
        "of these struck too late": lambda of: sum(job.late for job in of),
        "restarts": lambda of: sum(int(job.ended.get("Restarts", 0)) for job in of),
        "finished": lambda of: sum(job.identical is not None for job in of),
        "bit-identical": lambda of: sum(bool(job.identical) for job in of),
    }
    rows = []
    for kind in (*KINDS, "all"):
        of = [job for job in jobs if kind in (job.kind, "all")]
        if of:
            rows.append([kind, *(str(cell(of)) for cell in columns.values())])
    return markdown(["kind", *columns], rows)


def run(slurm: Cluster, folder: Path, jobs: int, seed: int) -> list[Job]:
    """The whole campaign; prints each job as it ends, and the table."""
    data = folder / "data"
    data.mkdir()
    campaign = Campaign(slurm, folder, [*real.prepare(data), *real.TINY])
    rounds = drawn(jobs, seed)
    played: list[Job] = []
    for ranks in sorted({job.ranks for each in rounds for job in each}):
        campaign.refer(ranks)
    for each in rounds:
        with BusyCores(OVERSUBSCRIBED * (os.cpu_count() or 1) if each[0].busy else 0):
            campaign.play(each)
        played += each
        print(table(played), flush=True)
    return played
