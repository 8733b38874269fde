"""A part of `python -m benchmarks.gpu` that is ended leaves no process behind, however it is ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import group
from tests.processes import has_ended

# Starts a process that starts a process, says who they are, and waits. STUBBORN heeds no SIGTERM.
STARTS = """
import os, subprocess, sys, time
code = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
print("figure: ignored by the reader", flush=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid} {child.stdout.readline()}")
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STARTS + "time.sleep(300)\n"
WAITS = STARTS + "time.sleep(300)\n"
LEAVES = STARTS  # ends well, and what it has started lives on


def pids(file: Path) -> list[int]:
    until = time.monotonic() + 60
    while not (file.exists() and len(file.read_text().split()) == 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    return [int(word) for word in file.read_text().split()]


def gone(found: list[int], within_s: float = 0.0) -> bool:
    until = time.monotonic() + within_s
    while not all(map(has_ended, found)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("code", [pytest.param(WAITS, marks=pytest.mark.slow), STUBBORN])
def test_nothing_of_a_late_command_lives(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "GRACE_S", 1.0)
    with (tmp_path / "told").open("w+") as told:
        assert group.run([sys.executable, "-c", code, str(tmp_path / "pids")], 4, tmp_path, told) is None
    assert gone(pids(tmp_path / "pids"))


def test_nothing_of_a_command_that_ended_lives(tmp_path: Path) -> None:
    with (tmp_path / "told").open("w+") as told:
        assert group.run([sys.executable, "-c", LEAVES, str(tmp_path / "pids")], 60, tmp_path, told) == 0
    assert gone(pids(tmp_path / "pids"))


# What runs a command like a part does, and what ends it.
PARENT = """
import sys
from pathlib import Path
from benchmarks.gpu import group
with group.signals_as_ctrl_c(), open(sys.argv[2] + "/told", "w+") as told:
    try:
        group.run([sys.executable, "-c", sys.argv[1], sys.argv[2] + "/pids"], 300, Path(sys.argv[2]), told)
    except KeyboardInterrupt as by:
        sys.exit(f"stopped by {by}")
"""
FOLLOWS = "from benchmarks.gpu import group; group.follow_parent()\n" + WAITS


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, WAITS), (signal.SIGTERM, WAITS), (signal.SIGHUP, WAITS), (signal.SIGKILL, FOLLOWS)],
)
def test_nothing_lives_on_when_the_parent_is_ended(number: int, code: str, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, code, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    found = pids(tmp_path / "pids")
    assert not any(map(has_ended, found))
    os.kill(parent.pid, number)
    _, error = parent.communicate(timeout=60)
    assert number == signal.SIGKILL or "stopped by" in error
    assert gone(found, within_s=10.0 if number == signal.SIGKILL else 0.0)
