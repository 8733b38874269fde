"""The guard of tests/conftest.py: tests that reach into the checkout's runs and data fail, or that leave files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout
from tests.checkout import ROOT, is_inside
from tests.faults.fork_server import ForkServer

TESTS = f"""\
import os
from pathlib import Path

def test_lists():
    for name in ("runs", "data"):
        Path("{ROOT}", name, "none").exists()
        try:
            os.listdir(f"{ROOT}/{{name}}")
        except FileNotFoundError:
            pass

def test_writes():
    Path("runs").mkdir()

def test_reads_nothing_there():
    assert not Path("runs").exists()
    assert Path("{ROOT}", "README.md").read_text()
"""


def test_a_test_that_touches_the_checkout_fails(tmp_path: Path) -> None:
    """In a process of its own; one that only looks for a relative path finds nothing."""
    (tmp_path / "test_them.py").write_text(TESTS)
    words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path), "-rE"]
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path / "test_them.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert "test_lists" in failed[0] and "test_writes" in failed[1]
    assert f"os.listdir {ROOT}/runs" in done.stdout and f"os.listdir {ROOT}/data" in done.stdout


def test_what_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_inside(path) for path in (f"{ROOT}/runs", f"{ROOT}/data/x".encode(), ROOT / "evaluations" / "x"))
    assert is_inside(f"{ROOT}/tests/../runs/x") and not is_inside(f"{ROOT}/runs/../README.md")
    outside = (f"{ROOT}/data_prep", f"{ROOT}/README.md", ROOT, "runs/x", 3, None, "/runs", f"{ROOT}/tests/data")
    assert not any(is_inside(path) for path in outside)
    monkeypatch.chdir(ROOT)
    assert is_inside("runs/x") and is_inside("./data") and not is_inside("data_prep/x")


def test_a_forked_rank_is_refused(server: ForkServer) -> None:
    rank = server.run("os:listdir", {"path": f"{ROOT}/runs"})[0]
    assert rank.code == 1 and "may not touch the checkout" in rank.err
    assert server.run("os:getcwd")[0].value != str(ROOT)


def test_the_folders_are_those_that_git_ignores() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert set(checkout.FOLDERS) <= ignored
