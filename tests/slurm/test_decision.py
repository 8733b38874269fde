"""Whether a job is queued again, by what its ranks left with and what Slurm says; when it is warned."""

import json
import re

import pytest

from coca_train.runtime import job
from coca_train.runtime.errors import UserError
from coca_train.runtime.job import End, Start

WAIT_S = 100.0
SHOWN = (
    "JobId=7 JobName=coca_train UserId=me(1) JobState={state} Reason={reason} Dependency=(null) "
    "Requeue={may} Restarts={restarts} BatchFlag=1"
)


def shown(state="RUNNING", reason="None", may=1, restarts=0):
    """The words of Slurm 22.05."""
    return SHOWN.format(state=state, reason=reason, may=may, restarts=restarts)


def ends(*codes, late=()):
    """Ranks that left together; those in `late` were ended by srun."""
    return [End(rank, code, 1000.0 + (WAIT_S if rank in late else rank % 3)) for rank, code in enumerate(codes)]


CAUSES = [
    # what the ranks left with, those that srun ended, is it queued again, what happened, the job's exit code
    ((0, 0), (), False, "done", 0),
    ((75, 75, 75, 75), (), True, "preempted", 75),
    ((75, 143), (), True, "preempted", 75),  # a peer of the first that left, signalled
    ((143, 143), (), True, "preempted", 75),  # TERM while Python was importing
    ((138, 138), (), True, "preempted", 75),  # USR1 there
    ((143, 137), (1,), True, "preempted", 75),
    ((75, 76), (), True, "preempted", 75),
    ((137, 76), (), True, "lost", 76),
    ((139, 76, 76, 76), (), True, "lost", 76),  # a segmentation fault
    ((None, 76), (), True, "lost", 76),  # a node, with all that was on it
    ((None, None), (), True, "lost", 76),
    ((76, 137), (1,), True, "lost", 76),  # stopped by SIGSTOP: its peers left, srun ended it
    ((76, 76), (), True, "lost", 76),
    ((137, 2), (), True, "lost", 76),  # killed at the rendezvous, which the other takes for a wrong address
    ((2, 2), (), False, "input", 2),
    ((2, 137), (1,), False, "input", 2),  # a mistake that only one rank sees, whose peers waited for it
    ((3, None), (1,), False, "input", 3),
    ((5, 5), (), False, "input", 5),
    ((8, 76), (), False, "input", 8),
    ((8, 137), (), False, "input", 8),
    ((6, 6), (), False, "input", 6),
    ((1, 1), (), False, "bug", 1),
    ((1, 76), (), True, "lost", 76),  # an error of one device, more often than of the code
    ((130, 75), (), False, "interrupted", 130),
    ((127, 127), (), False, "strange", 127),  # no python on these nodes
    ((0, 76), (), True, "lost", 76),
    ((0, 137), (1,), False, "done", 0),  # hangs while it leaves
]


@pytest.mark.parametrize(("codes", "late", "again", "what", "code"), CAUSES)
def test_the_table_of_ends(codes, late, again, what, code):
    decision = job.classify_ends(ends(*codes, late=late), WAIT_S, again=False)
    assert (decision.requeue, decision.what, decision.code) == (again, what, code), decision.reason


def test_the_order_in_which_ranks_leave_changes_nothing():
    for codes, late, again, what, code in CAUSES:
        turned = job.classify_ends(ends(*codes, late=late)[::-1], WAIT_S, again=False)
        assert (turned.requeue, turned.what, turned.code) == (again, what, code), codes


def test_the_lock_of_a_lost_node_is_waited_for_by_a_later_start():
    assert job.classify_ends(ends(6, 6), WAIT_S, again=True).what == "locked"
    assert job.classify_ends(ends(6, 6), WAIT_S, again=True).requeue


@pytest.mark.parametrize(
    ("told", "restarts", "why_not"),
    [
        (shown(), 0, ""),
        (shown(restarts=3), 3, ""),
        (shown("COMPLETING"), 0, "cancelled"),  # plain scancel, seen from within
        (shown("CANCELLED"), 0, "cancelled"),
        (shown("COMPLETING", "TimeLimit"), 0, ""),
        (shown("COMPLETING", "JobLaunchFailure"), 0, ""),  # its batch script was killed
        (shown("FAILED", "RaisedSignal:9"), 0, ""),
        (shown("COMPLETING", restarts=1), 0, "Slurm itself has queued it again"),  # a node failed, or it was preempted
        (shown("RUNNING", restarts=2), 1, "Slurm itself has queued it again"),  # this script outlived its node's loss
        (shown("PENDING", "BeginTime"), 0, "Slurm itself has queued it again"),
        (shown("DEADLINE", "DeadLine"), 0, "Slurm has ended it (DEADLINE)"),
        (shown(may=0), 0, "it was submitted with --no-requeue"),
        ("", 0, "Slurm does not say how it stands with the job"),
    ],
)
def test_what_slurm_says_of_the_job_comes_first(told, restarts, why_not):
    assert job.refused_by_slurm(told, restarts) == why_not


def lost(number, step):
    return Start(number, "lost", 76, step)


def preempted(number, step):
    return Start(number, "preempted", 75, step)


@pytest.mark.parametrize(
    ("before", "what", "step", "limit"),
    [
        ([], "lost", 40, ""),
        ([lost(0, 40)], "lost", 40, ""),
        ([lost(0, 40), lost(1, 40)], "lost", 40, "the same error at the same step (40) 3 times"),
        ([lost(0, 40), preempted(1, 40), lost(2, 40)], "lost", 40, "the same error at the same step (40) 3 times"),
        ([lost(0, 40), lost(1, 40)], "lost", 80, ""),
        ([lost(0, 0), lost(1, 40)], "lost", 40, ""),
        ([lost(0, 40), lost(1, 40)], "preempted", 40, ""),
        ([preempted(n, 40) for n in range(4)], "preempted", 40, ""),
        ([preempted(n, 40) for n in range(5)], "preempted", 40,
         "5 restarts without a new checkpoint (step 40), MAX_RESTARTS=5"),
        ([preempted(n, n) for n in range(50)], "preempted", 50, ""),
    ],
)  # fmt: skip
def test_no_more_starts_where_one_more_does_not_help(before, what, step, limit):
    code = {"lost": 76, "preempted": 75}[what]
    assert job.refused_by_limits(before, what, code, step, most=5) == limit


def test_a_job_from_its_folder(tmp_path):
    """Three starts of two ranks, of which one is killed at the same step each time; then a checkpoint, and a fourth."""
    folder, run_dir = tmp_path / "job", tmp_path / "run"
    (run_dir / "checkpoints/step-00000040").mkdir(parents=True)
    (run_dir / "checkpoints/.tmp-step-00000080-x").mkdir()
    folder.mkdir()
    (folder / "run_dir").write_text(str(run_dir))
    (folder / "rank-1.log").write_text("x\nE-RUN-15 rank 1: another rank is gone. Fix: look\nmore\n")
    decisions = []
    for start in range(4):
        if start == 3:
            (run_dir / "checkpoints/step-00000080").mkdir()
        (folder / f"start-{start}").mkdir()
        for rank, code in enumerate((137, 76)):
            (folder / f"start-{start}/rank-{rank}").write_text(f"{code} 1790000000\n")
        decisions.append(job.decide(folder, 2, shown(restarts=start), start, 20, WAIT_S))
    assert [(each.requeue, each.what) for each in decisions] == [(start != 2, "lost") for start in range(4)]
    assert str(decisions[0]).startswith("requeue: ") and "exit code 137 on rank 0" in str(decisions[0])
    assert re.match(r"no requeue: .*\(40\) 3 times; .* rank 1: E-RUN-15 .* Fix: look$", str(decisions[2]))
    kept = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    assert [(each["number"], each["step"]) for each in kept] == [(0, 40), (1, 40), (2, 40), (3, 80)]


def test_ranks_that_still_save_do_not_hold_up_an_orphaned_job(tmp_path):
    (tmp_path / "start-0").mkdir()
    (tmp_path / "start-0/rank-1").write_text("75 1790000000\n")
    decision = job.decide(tmp_path, 2, shown("COMPLETING", "JobLaunchFailure"), 0, 20, WAIT_S, orphaned=True)
    assert (decision.requeue, decision.what, decision.code) == (True, "lost", 76)
    (tmp_path / "start-0/rank-1").write_text("3 1790000000\n")
    assert not job.decide(tmp_path, 2, shown("COMPLETING", "JobLaunchFailure"), 0, 20, WAIT_S, orphaned=True).requeue


def test_nothing_in_the_folder_is_a_lost_rank_and_no_traceback(tmp_path):
    damaged = {"start-0/rank-0": "garbage", "starts.jsonl": '[]\n{\n{"number": 1}\n', "run_dir": "\0"}
    for name, text in damaged.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    decision = job.decide(tmp_path, 12, shown(), 0, 20, WAIT_S)
    assert decision.requeue and "(no exit code on ranks 0-11)" in str(decision)


@pytest.mark.parametrize(
    ("limit", "asked", "save_s", "lead"),
    [
        (86400, "auto", None, 600),
        (300, "auto", None, 75),
        (86400, "auto", 200, 660),  # a minute and three saves
        (86400, "auto", 0.4, 61.2),
        (300, "auto", 200, 150),
        (300, "299", 1, 299),
    ],
)
def test_the_warning_comes_so_long_before_the_limit_as_a_save_takes(limit, asked, save_s, lead):
    assert job.lead_s(limit, asked, save_s) == pytest.approx(lead)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("600", "E-RUN-32 LEAD_S=600: is not below the job's time limit of 300 s; .*Fix: leave LEAD_S out"),
        ("10min", "E-RUN-32 LEAD_S=10min: is no number of seconds;"),
    ],
)
def test_a_lead_that_does_not_fit_is_refused_in_words(asked, line, tmp_path):
    with pytest.raises(UserError, match=line):
        job.seconds_until_warning(tmp_path, asked, "4:58 5:00\n")


def test_seconds_until_the_warning(tmp_path):
    assert job.seconds_until_warning(tmp_path, "auto", "4:00 5:00\n") == 240 - 75
    (tmp_path / "save_s").write_text("10.000")
    assert job.seconds_until_warning(tmp_path, "auto", "1-01:00:00 2-00:00:00\n") == 25 * 3600 - 90
    assert job.seconds_until_warning(tmp_path, "auto", "0:10 5:00\n") == 0
    assert job.seconds_until_warning(tmp_path, "auto", "UNLIMITED UNLIMITED\n") is None
    assert job.seconds_until_warning(tmp_path, "auto", "") is None


def test_notes_are_of_rank_0_and_never_fail(tmp_path, monkeypatch):
    monkeypatch.delenv(job.FOLDER, raising=False)
    job.note("save_s", "1.0")
    monkeypatch.setenv(job.FOLDER, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    job.note("save_s", "2.0")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RANK", "0")
    job.note("save_s", "3.0")
    assert (tmp_path / "save_s").read_text() == "3.0"
    monkeypatch.setenv(job.FOLDER, str(tmp_path / "gone"))
    job.note("save_s", "4.0")
