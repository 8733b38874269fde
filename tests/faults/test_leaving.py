"""Signals where there is nothing to save, the way to where there is, and a launcher that is gone."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from coca_train.commands import RESUMING, verb_of, verbs
from coca_train.commands._children import run_child
from coca_train.config.verb import Verb
from coca_train.runtime import shutdown, watchdog
from coca_train.runtime.shutdown import StopRequest
from tests.cases import slow_unless
from tests.faults.fork_server import ROOT, ForkServer

HERE = "tests.faults.test_leaving:"
LIBRARY = """
import os, signal
os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
os._exit(99)  # the signal had no effect
"""


def importing(
    folder: Path, module: str, *words: str, event: str = "SIGTERM", ignored: bool = False, library: str = "torch"
) -> subprocess.CompletedProcess[str]:
    """`python -m module`, which gets a signal as it imports a library: what it finds under that name sends it."""
    (folder / f"{library}.py").write_text(LIBRARY)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{ROOT}", "SIGNAL": event}
    # Handed down to the child, as nohup does.
    before = signal.signal(signal.Signals[event], signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    finally:
        signal.signal(signal.Signals[event], before)


LEAVES = [
    ("coca_train", [], "SIGTERM"),
    *(("coca_train", ["train"], event) for event in ("SIGHUP", "SIGUSR1", "SIGUSR2")),
    ("coca_train", ["--local_rank=0", "train"], "SIGTERM"),
    ("coca_train", ["evaluate", "checkpoint=x"], "SIGTERM"),
    ("coca_train", ["compare", "runs=x"], "SIGTERM"),
    ("data_prep", ["tokenize"], "SIGTERM"),
]


@pytest.mark.parametrize(("module", "words", "event"), slow_unless(LEAVES[:1], LEAVES))
def test_a_signal_while_libraries_are_imported(tmp_path: Path, module: str, words: list[str], event: str) -> None:
    ended = importing(tmp_path, module, *words, event=event, library="pydantic" if "." in module or words else "torch")
    assert ended.returncode == 75, ended.stderr
    assert ended.stderr.startswith(f"stopped by {event} ") and ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_what_begins_anew_promises_nothing(tmp_path: Path) -> None:
    assert importing(tmp_path, "coca_train", "generate", "run=x", "prompt=x").returncode == -signal.SIGTERM


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    assert importing(tmp_path, "coca_train", event="SIGHUP", ignored=True).returncode == 99


def test_the_verbs_that_go_on_where_they_were() -> None:
    """A verb says so where it is defined; what leaves at once must know before it is imported."""
    new = Verb.__dataclass_fields__["resumes_from"].default
    texts = {name: verb_of(name).resumes_from for name in verbs()}
    assert set(RESUMING) == {name for name, text in texts.items() if text != new and "nothing" not in text}


def on_the_way(answered: bool) -> str:
    """In a forked rank: a signal while a model is trained, told to the loop or not."""
    shutdown.begin()
    with shutdown.last_act(lambda: print("last act", flush=True)), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        if answered:
            assert stop.requested()
    return str(stop.received)


def test_a_signal_after_the_last_look_is_not_lost(server: ForkServer) -> None:
    assert server.run(f"{HERE}on_the_way", {"answered": True})[0].value == "SIGHUP"
    (ended,) = server.run(f"{HERE}on_the_way", {"answered": False})
    assert (ended.code, ended.out) == (75, "last act\n")
    assert ended.err.startswith("stopped by SIGHUP ") and ended.err.count("\n") == 1


WAITS = "trap 'echo heard; exit 75' HUP; echo there > {}; while :; do sleep 0.02; done"


def with_a_child(mark: str) -> int:
    """In a forked process: what a sweep and a comparison do, asked to stop while their training runs."""
    shutdown.begin()
    pid = os.getpid()
    if os.fork() == 0:
        appears(Path(mark))
        os.kill(pid, signal.SIGHUP)
        os._exit(0)
    return run_child(["sh", "-c", WAITS.format(mark)])


def test_a_child_is_asked_too(server: ForkServer, tmp_path: Path) -> None:
    (ended,) = server.run(f"{HERE}with_a_child", {"mark": str(tmp_path / "mark")})
    assert (ended.value, ended.out) == (75, "heard\n"), ended.text


def wait_in_c() -> None:
    """In a forked rank: what no handler of Python gets through."""
    from torch._C._distributed_c10d import HashStore

    watchdog.LEAVE_S = 0.1
    shutdown.begin()
    with watchdog.Watchdog(60.0):
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(0.2)
            os.kill(pid, signal.SIGTERM)
            os._exit(0)
        HashStore().wait(["never"], timedelta(seconds=60))


def test_a_signal_amid_a_wait_in_c(server: ForkServer) -> None:
    began = time.monotonic()
    (ended,) = server.run(f"{HERE}wait_in_c", timeout_s=50, environment={"WORLD_SIZE": "2"})
    assert ended.code == 75 and "stopped by SIGTERM" in ended.err, ended.text
    assert time.monotonic() - began < 40


def orphaned(report: str, environment: dict[str, str]) -> None:
    """In a forked process: start a rank, and die. The rank reports the signal that it received."""
    reader, writer = os.pipe()
    if os.fork():
        os.read(reader, 1)  # the rank has remembered its launcher
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ.update(
        {name: str(os.getppid()) if value == "its parent" else value for name, value in environment.items()}
    )
    shutdown.begin()
    with watchdog.Watchdog(60.0), StopRequest() as stop:
        os.write(writer, b"x")
        end = time.monotonic() + (20 if shutdown.launcher_process() else 1)
        while not stop.requested() and time.monotonic() < end:
            time.sleep(0.05)
    Path(f"{report}.part").write_text(json.dumps(stop.received))
    os.rename(f"{report}.part", report)
    os._exit(0)


def appears(path: Path) -> bool:
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return path.exists()


LAUNCHERS = [
    ({"RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, "SIGTERM"),
    ({"RANK": "0", "CROSS_RANK": "0"}, "SIGTERM"),  # deepspeed's
    ({"RANK": "0", "SLURM_STEP_ID": "0"}, "SIGTERM"),
    ({"COCA_TRAIN_STARTED_BY": "its parent"}, "SIGTERM"),  # of compare and the like
    ({"COCA_TRAIN_STARTED_BY": "1"}, None),  # of something that such a training starts
    ({"RANK": "0"}, None),  # started by hand, in the background of a shell that ends
    ({"SLURM_STEP_ID": "0"}, None),
]


@pytest.mark.parametrize(("environment", "received"), slow_unless([LAUNCHERS[0], *LAUNCHERS[3:6]], LAUNCHERS))
def test_a_rank_whose_launcher_is_gone(
    server: ForkServer, tmp_path: Path, environment: dict[str, str], received: str | None
) -> None:
    job = {"report": str(tmp_path / "report"), "environment": environment}
    (ended,) = server.run(f"{HERE}orphaned", job, launcher=False)
    assert ended.code == -signal.SIGKILL
    assert appears(tmp_path / "report")
    assert json.loads((tmp_path / "report").read_text()) == received
