"""The shipped script as a job of a real Slurm: what a job does at its end. Its ranks are stand-ins of a few lines."""

import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import ROOT, Cluster, wait_for

pytestmark = pytest.mark.slurm
SCRIPT = str(ROOT / "launch/slurm/train.sbatch")
# A rank: says that it runs, and ends as one of the words <start>.<rank>=<end> says; else it waits to be asked to stop.
RANK = """\
import os, signal, sys, time
rank, start = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
asked = []
def leave(number, frame):
    asked.append(number)
    if "slow" in sys.argv and len(asked) == 1:
        return
    time.sleep(0.2 * int(rank))
    sys.exit(75)
if "deaf" not in sys.argv:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, leave)
told = [f"rank {rank} of {os.environ['WORLD_SIZE']} runs, start {start}", *sys.argv[1:]]
print(*told, os.environ.get("OF_SITE", ""), flush=True)
for word in sys.argv[1:]:
    when, _, how = word.partition("=")
    if when in (f"{start}.{rank}", f"{start}.*", f"*.{rank}", "*.*"):
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how != "wait":
            sys.exit(int(how))
time.sleep(120)
"""


class Jobs:
    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        (folder / "bin").mkdir()
        (folder / "rank.py").write_text(RANK)
        real, rank = shlex.quote(sys.executable), shlex.quote(str(folder / "rank.py"))
        itself = f'case "$*" in *runtime.job*|*--multirun*) exec {real} "$@";; esac'
        (folder / "bin/python").write_text(f'#!/bin/sh\n{itself}\nshift 2\nexec {real} -S {rank} "$@"\n')
        (folder / "bin/python").chmod(0o755)
        path = f"{folder}/bin:{slurm.environment['PATH']}"
        self.environment = {"PATH": path, "PYTHONPATH": str(ROOT), "WAIT_S": "12"}

    def submit(self, *words: str, options: tuple[str, ...] = (), ranks: int = 2, **environment: str) -> str:
        layout = ("--nodes=2", f"--ntasks-per-node={ranks // 2}", "--output=%j.log", "--time=30")
        return self.slurm.submit(*layout, *options, SCRIPT, *words, cwd=self.folder, **self.environment, **environment)

    def log(self, job: str) -> str:
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def runs(self, job: str, start: int = 0) -> None:
        """Wait until all its ranks do."""
        told = f"runs, start {start}"
        ranks = int(wait_for("ranks", lambda: re.search(r": (\d+) ranks on", self.log(job)), 60)[1])
        others = [f"coca_train-{job}/rank-{rank}.log" for rank in range(1, ranks)]
        logs = [self.folder / name for name in (f"{job}.log", *others)]
        wait_for(told, lambda: all(path.exists() and told in path.read_text() for path in logs), 60)

    def queued_again(self, job: str, restarts: int = 1) -> None:
        """Wait for that, and let it begin at once."""

        def waits() -> bool:
            shown = self.slurm.job(job)
            return (shown["Restarts"], shown["JobState"]) == (str(restarts), "PENDING")

        wait_for("the queue", waits, 60)
        self.slurm.call("scontrol", "update", f"job={job}", "StartTime=now")

    def decisions(self, job: str) -> list[str]:
        return re.findall(r"^(?:no )?requeue: .*", self.log(job), re.M)


@pytest.fixture
def jobs(slurm: Cluster, tmp_path: Path) -> Jobs:
    return Jobs(slurm, tmp_path)


ASKED = "requeue: asked to stop (exit code 75 on ranks 0-{})"


def test_a_warned_job_begins_again_and_ends(jobs: Jobs) -> None:
    job = jobs.submit("1.*=0", ranks=4)
    jobs.runs(job)
    jobs.slurm.call("scancel", "--signal=TERM", job)
    jobs.queued_again(job)
    ended = jobs.slurm.ended(job, 60)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert jobs.decisions(job) == [ASKED.format(3), "no requeue: done"]
    assert not (jobs.folder / f"coca_train-{job}/rank-0.log").exists()


MEND = "no requeue: what has to be mended stands above, in one line"
EARLY = "requeue: asked to stop before there was anything to save"
ENDS = {
    "killed": (["0.1=kill", "0.0=76", "1.*=0"], 1, "requeue: rank 1 was killed (exit code 137 on rank 1)"),
    "signalled early": (["0.*=143", "1.*=0"], 1, f"{EARLY} (exit code 143 on ranks 0-1)"),
    "hangs": (["0.0=76", "0.1=wait", "deaf", "1.*=0"], 1, "requeue: a rank died or hangs (exit code 76 on rank 0)"),
    "input": (["*.*=3"], 0, f"{MEND} (exit code 3 on ranks 0-1)"),
    "a mistake that one rank sees": (["*.0=2", "deaf"], 0, f"{MEND} (exit code 2 on rank 0)"),
    "bug": (["*.*=1"], 0, "no requeue: a bug; the same would happen again (exit code 1 on ranks 0-1)"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_each_way_to_end(jobs: Jobs, kind: str) -> None:
    words, restarts, decision = ENDS[kind]
    state = "COMPLETED" if restarts else "FAILED"
    job = jobs.submit(*words)
    if restarts:
        jobs.queued_again(job)
    ended = jobs.slurm.ended(job, 90)
    assert (ended["JobState"], ended["Restarts"]) == (state, str(restarts)), jobs.log(job)
    assert jobs.decisions(job)[0] == decision


def test_the_same_error_three_times_is_the_last(jobs: Jobs) -> None:
    job = jobs.submit("*.1=kill", "*.0=76")
    for start in (1, 2):
        jobs.queued_again(job, start)
    ended = jobs.slurm.ended(job, 60)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "2", "76:0")
    last = jobs.decisions(job)[2]
    assert last.startswith("no requeue: ") and "(0) 3 times; rank 1 " in last


def test_plain_scancel_is_the_end(jobs: Jobs) -> None:
    """Though every rank saves and leaves with 75."""
    job = jobs.submit()
    jobs.runs(job)
    jobs.slurm.call("scancel", job)
    ended = jobs.slurm.ended(job, 60)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert all(line.startswith("no requeue: cancelled") for line in jobs.decisions(job))
    assert (jobs.folder / f"coca_train-{job}/start-0/rank-0").read_text().startswith("75 ")


def test_rank_0_decides_for_a_batch_script_that_was_killed(jobs: Jobs) -> None:
    job = jobs.submit("1.*=0")
    jobs.runs(job)
    (script,) = jobs.slurm.batch_script(job)
    os.kill(script, signal.SIGKILL)
    jobs.queued_again(job)
    assert jobs.slurm.ended(job, 60)["JobState"] == "COMPLETED"
    decisions = ("requeue: the batch script was killed", ASKED.format(1))  # by whether the ranks have left by then
    assert jobs.decisions(job)[0] in decisions and jobs.decisions(job)[1:] == ["no requeue: done"]
    assert (jobs.folder / f"coca_train-{job}/start-0/rank-1").read_text().startswith("75 ")


def test_ranks_outlive_srun_until_they_have_saved(jobs: Jobs) -> None:
    job = jobs.submit("1.*=0")
    jobs.runs(job)
    for pid in jobs.slurm.processes("srun\0--job-name=ranks", job=job):
        os.kill(pid, signal.SIGKILL)
    jobs.queued_again(job)
    assert jobs.slurm.ended(job, 60)["JobState"] == "COMPLETED"
    assert jobs.decisions(job)[0].startswith("requeue: ")


def test_what_slurm_queued_again_itself_is_not_queued_twice(jobs: Jobs) -> None:
    """A node that fails: the script of the start before is told so, and leaves the new one alone."""
    job = jobs.submit("1.*=0")
    jobs.runs(job)
    jobs.slurm.call("scontrol", "update", "nodename=c2", "state=down", "reason=test")
    jobs.queued_again(job)
    jobs.slurm.call("scontrol", "update", "nodename=c2", "state=resume", check=False)
    ended = jobs.slurm.ended(job, 90)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    assert jobs.decisions(job)[0].startswith("no requeue: Slurm itself ")


def test_one_task_of_an_array_begins_again_and_no_other(jobs: Jobs) -> None:
    """The last task of an array has the id of the whole array."""
    words = ("position=rope,coca",)
    array = jobs.submit(*words, options=("--array=1-2", "--output=%a.log"))
    first, last = f"{array}_1", f"{array}_2"
    for task in ("1", "2"):
        wait_for("its ranks", lambda t=task: "rank 0 of 2 runs, start 0" in jobs.log(t), 120)
    assert "run.name=quickstart-rope" in jobs.log("1") and "run.name=quickstart-coca" in jobs.log("2")
    jobs.slurm.call("scancel", "--signal=TERM", last)
    wait_for("the queue", lambda: jobs.slurm.job(last).get("Restarts") == "1", 60)
    time.sleep(3)
    assert (jobs.slurm.state(first), jobs.slurm.job(first)["Restarts"]) == ("RUNNING", "0")
    jobs.slurm.call("scancel", array)


def test_warned_before_the_time_limit(jobs: Jobs) -> None:
    """The lead is an argument; 55 s of 60, so that it comes soon."""
    job = jobs.submit("1.*=0", options=("--time=1",), LEAD_S="55")
    jobs.queued_again(job)
    assert jobs.slurm.ended(job, 90)["JobState"] == "COMPLETED"
    assert jobs.decisions(job)[0] == ASKED.format(1)


def test_time_runs_out_before_all_is_saved(jobs: Jobs) -> None:
    """Slurm ends the job, its ranks get ready in the seconds that it leaves them: queued again all the same."""
    job = jobs.submit("slow", "1.*=0", options=("--time=1",), LEAD_S="5")
    wait_for("its end", lambda: jobs.decisions(job), 150)
    jobs.queued_again(job)
    assert jobs.slurm.ended(job, 60)["JobState"] == "COMPLETED"
    assert "DUE TO TIME LIMIT" in jobs.log(job)
    assert jobs.decisions(job)[0] == ASKED.format(1)


def test_a_lead_beyond_the_limit_is_one_line(jobs: Jobs) -> None:
    job = jobs.submit(options=("--time=5",), LEAD_S="600")
    ended = jobs.slurm.ended(job, 60)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "2:0")
    assert "E-RUN-32 LEAD_S=600: " in jobs.log(job)
    assert "runs, start" not in jobs.log(job)


def test_fewer_nodes_after_a_loss(jobs: Jobs) -> None:
    job = jobs.submit("1.*=0", options=("--nodes=1-2",))
    jobs.runs(job)
    jobs.slurm.call("scontrol", "update", "nodename=c2", "state=drain", "reason=test")
    jobs.slurm.call("scancel", "--signal=USR1", job)
    jobs.queued_again(job)
    ended = jobs.slurm.ended(job, 60)
    jobs.slurm.call("scontrol", "update", "nodename=c2", "state=resume", check=False)
    assert (ended["JobState"], ended["NumNodes"]) == ("COMPLETED", "1")
    assert "rank 0 of 1 runs, start 1" in jobs.log(job)


def test_the_site_s_own_file(jobs: Jobs) -> None:
    """Words in front of each python, as a container's; options of srun; the network's variables."""
    shutil.copy(ROOT / "launch/slurm/site.sh", jobs.folder / "all_in_comments.sh")
    (jobs.folder / "bin/apptainer").write_text('#!/bin/sh\necho "inside of $2" >&2\nshift 2\nexec "$@"\n')
    (jobs.folder / "bin/apptainer").chmod(0o755)
    (jobs.folder / "coca_train.site.sh").write_text(
        ". ./all_in_comments.sh\nbefore=(apptainer exec 'an image.sif')\nexport OF_SITE=ib0\nMASTER_ADDR=c2\n"
    )
    job = jobs.submit("*.*=0")
    assert jobs.slurm.ended(job, 60)["JobState"] == "COMPLETED"
    log = jobs.log(job)
    assert "2 ranks on c[1-2], c2:" in log
    assert "rank 0 of 2 runs, start 0 *.*=0 ib0" in log
    assert log.count("inside of an image.sif") == 3, log  # the lead, rank 0, the decision
    assert "inside of an image.sif" in (jobs.folder / f"coca_train-{job}/rank-1.log").read_text()
