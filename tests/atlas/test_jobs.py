"""Jobs that run at once: their order, their ends, and that none is left alone."""

import os
import signal
import sys
import threading
import time

import pytest

from coca_train.commands import _children
from coca_train.commands._children import Job, run_jobs

SAVES = "trap 'echo saved >> {0}; exit 75' TERM; echo began >> {0}; while :; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(_children, "POLL_S", 0.02)
    monkeypatch.setattr(_children, "WATCH_S", 0.05)


def sh(*scripts):
    return [["sh", "-c", script] for script in scripts]


def run(jobs, at_once=2, done=lambda job: None, lost=None):
    return run_jobs(jobs, at_once, {"WORD": "said"}, done, lambda running: None, lost or {})


def until(path, text):
    while not path.exists() or text not in path.read_text():
        time.sleep(0.02)


def test_commands_of_a_job_come_one_after_the_other(tmp_path):
    ended = []
    jobs = [Job(name, sh("sleep 0.1; echo $WORD one", "echo two"), tmp_path / "logs" / name) for name in "abc"]
    assert run(jobs, done=lambda job: ended.append(job.name)) == (0, None)
    assert sorted(ended) == ["a", "b", "c"]
    assert [job.log.read_text() for job in jobs] == ["said one\ntwo\n"] * 3


def test_after_a_failure_no_job_begins_and_those_that_run_end(tmp_path):
    slow = Job("slow", sh("sleep 0.3; echo ended"), tmp_path / "slow")
    later = Job("later", sh("true"), tmp_path / "later")
    code, failed = run([Job("bad", sh("exit 3"), tmp_path / "bad"), slow, later])
    assert (code, failed.name) == (3, "bad")
    assert slow.log.read_text() == "ended\n"
    assert not later.log.exists()


def test_an_end_that_is_expected_stops_nothing(tmp_path):
    lost, ended = [], []
    jobs = [Job("diverges", sh("exit 5", "echo never"), tmp_path / "d"), Job("other", sh("true"), tmp_path / "o")]
    code = run(jobs, 1, lambda job: ended.append(job.name), {5: lambda job: lost.append(job.name)})
    assert (code, lost, ended) == ((0, None), ["diverges"], ["other"])
    assert jobs[0].log.read_text() == ""


def test_a_request_to_stop_reaches_all_and_nothing_else_begins(tmp_path):
    files = [tmp_path / name for name in "ab"]
    jobs = [Job(file.name, sh(SAVES.format(file), "echo second"), tmp_path / f"{file.name}.log") for file in files]

    def stop():
        for file in files:
            until(file, "began")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert run([*jobs, Job("c", sh("true"), tmp_path / "c.log")]) == (75, None)
    assert [file.read_text() for file in files] == ["began\nsaved\n"] * 2
    assert not (tmp_path / "c.log").exists()


def test_after_ctrl_c_no_further_command_begins(tmp_path):
    job = Job("a", sh("echo began; sleep 0.4", "echo second"), tmp_path / "a.log")

    def interrupt():
        until(job.log, "began")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run([job]) == (130, None)
    assert job.log.read_text() == "began\n"


def test_ctrl_c_reaches_what_the_terminal_does_not(tmp_path, capfd):
    """As `kill -INT` of the command alone: what runs is asked to save, once, and that is said."""
    file = tmp_path / "left"

    def interrupt():
        until(file, "began")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run([Job("a", sh(SAVES.format(file)), tmp_path / "a.log")]) == (130, None)
    assert file.read_text() == "began\nsaved\n"
    assert capfd.readouterr().err == "Interrupted: waiting for 1 training to save and end\n"


def test_what_runs_notices_that_its_command_is_gone(tmp_path):
    said = "from coca_train.runtime import shutdown; shutdown.begin(); print(shutdown.launcher_process())"
    script = f"{sys.executable} -c '{said}'"
    job = Job("a", [["sh", "-c", f"exec {script}"], ["sh", "-c", f"{script}; true"]], tmp_path / "a.log")
    assert run([job]) == (0, None)
    assert job.log.read_text() == f"{os.getpid()}\nNone\n"  # not what a child starts itself


def test_an_error_of_ours_leaves_no_child_alone(tmp_path):
    file = tmp_path / "left"

    def fails(job):
        until(file, "began")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        run([Job("a", sh("true"), tmp_path / "a"), Job("b", sh(SAVES.format(file)), tmp_path / "b")], done=fails)
    assert file.read_text() == "began\nsaved\n"
