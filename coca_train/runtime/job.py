"""A job of a cluster: when its ranks are warned, and whether it is queued again, by what happened to each of them.

Plain Python without a package, for the host or the container a batch script runs in (launch/slurm/train.sbatch):

  python -m coca_train.runtime.job left FOLDER LEAD     seconds until the ranks are warned
  python -m coca_train.runtime.job decide FOLDER RANKS  the decision, in one line; with one more word: the caller is not
                                                        the batch script, but a rank whose script was killed

stdin is the output of Slurm: `squeue --format "%L %l"`, `scontrol show job --oneliner`. FOLDER is the job's own.
`start-N/rank-R` has what rank R left with the N-th time, as a shell says it, and when (`137 1790000000`);
`starts.jsonl` what was decided; `run_dir` and `save_s` are notes of rank 0.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from coca_train.runtime.errors import LockedError, PeerLost, Preempted, UserError

FOLDER = "COCA_TRAIN_JOB"  # the environment variable that names the job's folder to its ranks
SAME_ERROR = 3  # times at the same step: one more would not help
MAX_RESTARTS = 20  # in a row without a newer checkpoint, whatever ended them
WAIT_S = 900.0  # srun --wait: what is left of a step so long after its first rank is ended by srun
SLACK_S = 5.0  # clocks of two nodes, and whole seconds

SIGNAL = 128  # a shell's exit code of a process that a signal ended, less the signal
WARNINGS = {SIGNAL + 1: "SIGHUP", SIGNAL + 10: "SIGUSR1", SIGNAL + 12: "SIGUSR2", SIGNAL + 15: "SIGTERM"}
INTERRUPTED = SIGNAL + 2
BUG = 1
MISTAKES = range(2, 9)  # configuration, data, checkpoint, diverged, locked, storage, memory (runtime/errors.py)

LEAD_BEFORE_A_SAVE_S = 600.0
LEAD_WITHOUT_SAVE_S = 60.0  # to end the step, its validation, and to leave


class End(NamedTuple):
    """How a rank ended. code: a shell's; None: it left none. at_s: when [seconds since 1970]."""

    rank: int
    code: int | None
    at_s: float

    @property
    def lost(self) -> bool:
        """Whether it was killed, or gone with its node, without a request to stop."""
        return self.code is None or (self.code > SIGNAL and self.code != INTERRUPTED and self.code not in WARNINGS)

    @property
    def stopped(self) -> bool:
        """Whether it was stopped on request: with everything saved, or, by the signal itself, before there was anything
        to save."""
        return self.code == Preempted.exit_code or self.code in WARNINGS


class Start(NamedTuple):
    """One start of a job, as starts.jsonl keeps it. step: of the newest checkpoint when it had ended."""

    number: int
    what: str
    code: int
    step: int


class Decision(NamedTuple):
    """Whether a job is queued again, why, what happened (`Start.what`), and the exit code of the job."""

    requeue: bool
    reason: str
    what: str
    code: int

    def __str__(self) -> str:
        return f"{'requeue' if self.requeue else 'no requeue'}: {self.reason}"


def note(name: str, text: str) -> None:
    """Rank 0: write a line for the launcher into the job's folder, where there is one. It never fails a run."""
    folder = os.environ.get(FOLDER)
    if folder and os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            new = Path(folder, f".{name}")
            new.write_text(text, encoding="utf-8")
            new.replace(Path(folder, name))


def classify_ends(ends: Sequence[End], wait_s: float, again: bool) -> Decision:
    """Decide from how all ranks ended what happened to a start, and whether another is worth it. again: it is not the
    first."""
    # Of the first to end and those near it: what is left wait_s later is ended by srun, and does not show the cause.
    first_s = min(end.at_s for end in ends)
    near = [end for end in ends if end.at_s < first_s + max(wait_s - SLACK_S, SLACK_S)]
    codes = {end.code for end in near}
    lost = [end for end in near if end.lost]
    mistakes = sorted(code for code in codes if code is not None and code in MISTAKES)
    if codes == {0}:
        return Decision(False, "done", "done", 0)
    if mistakes == [LockedError.exit_code] and again:
        # The lock of a start on a node that is gone stays for two minutes (checkpoint/lock.py).
        return _requeue("locked", near, LockedError.exit_code, "the lock of an earlier start may still be there")
    # Killed while the ranks looked for each other: the others may take the silence for a wrong address (2).
    if mistakes and not (lost and mistakes == [UserError.exit_code]):
        return _give_up("input", near, mistakes[-1], "what has to be mended stands above, in one line")
    if INTERRUPTED in codes:
        return _give_up("interrupted", near, INTERRUPTED, "interrupted by hand")
    if stopped := [end for end in near if end.stopped]:
        saved = any(end.code == Preempted.exit_code for end in stopped)
        words = "asked to stop" if saved else "asked to stop before there was anything to save"
        return _requeue("preempted", stopped, Preempted.exit_code, words)
    if lost:
        words = "killed" if lost[0].code is not None else "gone without a word"
        return _requeue("lost", lost, PeerLost.exit_code, f"rank {lost[0].rank} was {words}")
    if codes == {BUG}:
        return _give_up("bug", near, BUG, "a bug; the same would happen again")
    if BUG in codes and codes <= {0, BUG, PeerLost.exit_code}:
        # What fails on one rank of many is more often its device than the code; if it is the code, it fails again.
        bugs = [end for end in near if end.code == BUG]
        return _requeue("lost", bugs, PeerLost.exit_code, f"rank {bugs[0].rank} failed, the others did not")
    if PeerLost.exit_code in codes and codes <= {0, PeerLost.exit_code}:
        hung = [end for end in near if end.code == PeerLost.exit_code]
        return _requeue("lost", hung, PeerLost.exit_code, "a rank died or hangs")
    strange = [end for end in near if end.code not in (0, PeerLost.exit_code)]
    return _give_up("strange", strange, strange[0].code or BUG, "no exit code of coca_train: does python start there?")


def _requeue(what: str, ends: Sequence[End], code: int, words: str) -> Decision:
    return Decision(True, f"{words} ({_listed(ends)})", what, code)


def _give_up(what: str, ends: Sequence[End], code: int, words: str) -> Decision:
    return Decision(False, f"{words} ({_listed(ends)})", what, code)


def _listed(ends: Sequence[End]) -> str:
    """Describe the ends by code, ranks in spans: `exit code 75 on ranks 0-7`."""
    by_code: dict[int | None, list[int]] = {}
    for end in ends:
        by_code.setdefault(end.code, []).append(end.rank)
    left_with = {code: "no exit code" if code is None else f"exit code {code}" for code in by_code}
    return ", ".join(
        f"{left_with[code]} on rank{'s' if len(ranks) > 1 else ''} {','.join(spans(ranks))}"
        for code, ranks in by_code.items()
    )


def spans(ranks: Iterable[int]) -> list[str]:
    """Write [0, 1, 2, 5] as ["0-2", "5"]."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def refused_by_slurm(job_state: str, restarts: int) -> str:
    """Return why Slurm's own state of the job leaves nothing to decide; empty: it does not.

    job_state: what `scontrol show job --oneliner` prints.

    restarts: how often it had been queued again when the asking script started (SLURM_RESTART_COUNT).
    """
    match = re.search(r" JobState=(\w+) Reason=(\S*) .*?\bRequeue=(\d+) Restarts=(\d+)", job_state)
    if match is None:
        return "Slurm does not say how it stands with the job"
    state, reason, may, now = match[1], match[2], match[3] != "0", int(match[4])
    if now > restarts or state in ("PENDING", "REQUEUED", "CONFIGURING"):
        return "Slurm itself has queued it again"
    # While a job completes, Slurm hides its state behind that word; the reason tells if time or its script ended it.
    by_itself = reason in ("TimeLimit", "JobLaunchFailure", "NonZeroExitCode") or reason.startswith("RaisedSignal")
    if state not in ("RUNNING", "SUSPENDED") and not by_itself:
        return "cancelled" if state in ("CANCELLED", "COMPLETING") else f"Slurm has ended it ({state})"
    return "" if may else "it was submitted with --no-requeue"


def refused_by_limits(before: Sequence[Start], what: str, code: int, step: int, most: int) -> str:
    """Return why one start more would be one too many: the same error at the same step, or no progress; empty: it is
    not."""
    at_step = 0  # starts in a row that did not come further, this one included
    for start in reversed(before):
        if start.step != step:
            break
        at_step += 1
    same = 1 + sum(start.what == what and start.code == code for start in before[len(before) - at_step :])
    if what != "preempted" and same >= SAME_ERROR:
        return f"the same error at the same step ({step}) {same} times"
    if at_step >= most:
        return f"{at_step} restarts without a new checkpoint (step {step}), MAX_RESTARTS={most}"
    return ""


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint of the run that rank 0 has noted; 0: there is none."""
    try:
        names = os.listdir(Path(_read(folder / "run_dir"), "checkpoints"))
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return 0
    return max((int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{1,18}", name)), default=0)


def ends_of(start: Path, ranks: int, now_s: float) -> list[End]:
    """Return how each rank of a start ended; one that left no code is taken to have ended now."""
    ends = []
    for rank in range(ranks):
        # By name: a folder's listing may be a minute old on a network file system, a name never looked up is not.
        words = _read(start / f"rank-{rank}").split()
        if len(words) == 2 and all(word.isdecimal() and len(word) < 16 for word in words):
            ends.append(End(rank, int(words[0]), float(words[1])))
        else:
            ends.append(End(rank, None, now_s))
    return ends


def decide(
    folder: Path, ranks: int, job_state: str, restarts: int, most: int, wait_s: float, orphaned: bool = False
) -> Decision:
    """Decide whether the job is queued again, and keep the decision in starts.jsonl.

    job_state: what `scontrol show job --oneliner` prints. orphaned: the batch script was killed; ranks may be saving.
    """
    ends = ends_of(folder / f"start-{restarts}", ranks, time.time())
    decision = classify_ends(ends, wait_s, restarts > 0)
    if orphaned and any(end.code is None for end in ends) and decision.requeue:
        decision = decision._replace(reason="the batch script was killed", what="lost", code=PeerLost.exit_code)
    before, step = history(folder), newest_step(folder)
    if decision.what != "done" and (why_not := refused_by_slurm(job_state, restarts)):
        decision = decision._replace(requeue=False, reason=f"{why_not}; {decision.reason}")
    if decision.requeue and (limit := refused_by_limits(before, decision.what, decision.code, step, most)):
        decision = decision._replace(requeue=False, reason=f"{limit}; {decision.reason}{last_words(folder, ranks)}")
    with contextlib.suppress(OSError), open(folder / "starts.jsonl", "a", encoding="utf-8") as file:
        start = Start(restarts, decision.what, decision.code, step)._asdict()
        file.write(json.dumps(start | {"decision": str(decision)}) + "\n")
    return decision


def history(folder: Path) -> list[Start]:
    """Return the decisions at the end of the starts before."""
    starts = []
    for line in _read(folder / "starts.jsonl").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            record = json.loads(line)
            starts.append(Start(*(record[name] for name in Start._fields)))
    return starts


def last_words(folder: Path, ranks: int) -> str:
    """Return the last line with an error's code in the log of a rank other than 0; empty: there is none."""
    for rank in range(1, ranks):
        lines = _read(folder / f"rank-{rank}.log", tail=1 << 16).splitlines()
        if errors := [line for line in lines if re.match(r"E-[A-Z]+-\d+ ", line)]:
            return f"; the last of rank {rank}: {errors[-1][:300]}"
    return ""


def seconds(text: str) -> float | None:
    """Parse Slurm's days-hours:minutes:seconds; None: UNLIMITED, or not to be read."""
    parts = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if parts is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + rest


def lead_s(limit_s: float, setting: str, save_s: float | None) -> float:
    """Return how long before its time limit a job is warned [seconds].

    setting: a number, or "auto": a minute and three times the slowest save so far, at most half the limit; before the
    first save a quarter of it, at most ten minutes. Raises UserError where a number does not fit the limit.
    """
    if setting == "auto":
        if save_s is None:
            return min(LEAD_BEFORE_A_SAVE_S, limit_s / 4)
        return min(LEAD_WITHOUT_SAVE_S + 3 * save_s, limit_s / 2)
    lead = float(setting) if re.fullmatch(r"\d{1,9}(\.\d*)?", setting) else None
    if lead is None or lead >= limit_s:
        what = "is no number of seconds" if lead is None else f"is not below the job's time limit of {limit_s:.0f} s"
        raise UserError(
            f"E-RUN-32 LEAD_S={setting}: {what}; the ranks are warned so long before the limit, and save. "
            "Fix: leave LEAD_S out, which measures a save, or submit with a longer --time"
        )
    return lead


def seconds_until_warning(folder: Path, lead: str, times: str) -> float | None:
    """Return the seconds until the ranks are warned; None: never. Raises UserError.

    lead: see `lead_s`. times: what `squeue --format "%L %l"` prints.
    """
    time_left, _, limit = times.strip().partition(" ")
    left_s, limit_s = seconds(time_left), seconds(limit.strip())
    if left_s is None or limit_s is None:
        return None
    try:
        save_s = float(_read(folder / "save_s"))
    except ValueError:
        save_s = None
    return max(0.0, left_s - lead_s(limit_s, lead, save_s))


def _read(path: Path, tail: int = 1 << 20) -> str:
    """Read the end of a small file, at most `tail` bytes; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            return file.read(tail).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d*)?", text) else default


def main(argv: Sequence[str]) -> int:
    """Answer the batch script; the exit code is that of the job, 75 where the ranks will never be warned."""
    what, folder, argument = argv[0], Path(argv[1]), argv[2]
    restarts = int(_number("SLURM_RESTART_COUNT", 0))
    if what == "left":
        try:
            seconds_left = seconds_until_warning(folder, argument, sys.stdin.read())
        except UserError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        if seconds_left is None:
            return Preempted.exit_code
        print(f"{seconds_left:.0f}")
        return 0
    most, wait_s = int(_number("MAX_RESTARTS", MAX_RESTARTS)), _number("WAIT_S", WAIT_S)
    decision = decide(folder, int(argument), sys.stdin.read(), restarts, most, wait_s, orphaned=len(argv) > 3)
    print(decision)
    return decision.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
