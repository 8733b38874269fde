"""What all tests share: an empty folder to run in, the garbage collector, and one process that forks the ranks of every
trial."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import checkout
from tests.faults.fork_server import LAUNCHER, ForkServer

gc.disable()  # what is imported and collected stays until the end: looking through it takes longer than making it

BEFORE = pytest.StashKey[set[str]]()
FOLDER = pytest.StashKey[tuple[Path, Path]]()  # where tests run, and where the session was started


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = checkout.entries()
    # A job in the background of a shell ignores it, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    checkout.watch()
    path = [str(checkout.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)  # for `python -m tests.…`


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Those that fork ranks come first: they take longest, and one worker gets them all, so that one server will do."""
    items.sort(key=lambda item: "server" not in item.fixturenames)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage again, but only what the tests make. Go to the folder where they run."""
    gc.freeze()
    gc.enable()
    folder = Path(tempfile.mkdtemp(prefix="coca-tests-"))
    session.config.stash[FOLDER] = folder, Path.cwd()
    os.chdir(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that touched the checkout, left something in the folder where it ran, or made this process look like
    one that a launcher started."""
    yield
    launched = [name for name in LAUNCHER if os.environ.pop(name, None) is not None]
    assert not launched, f"a test may not leave variables of a launcher behind: {launched}"
    touched = checkout.touched.copy()
    checkout.touched.clear()
    assert not touched, f"a test may not touch what commands leave in the checkout: {touched[:5]}"
    folder, _ = item.config.stash[FOLDER]
    os.chdir(folder)
    left = os.listdir(folder)
    for name in left:
        shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
    assert not left, f"a test may write into tmp_path only, and left in the current folder: {left}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if FOLDER in session.config.stash:
        folder, before = session.config.stash[FOLDER]
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)
    if not hasattr(session.config, "workerinput") and checkout.entries() - session.config.stash[BEFORE]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if new := sorted(checkout.entries() - config.stash[BEFORE]):
        terminalreporter.write_line(f"FAILED the checkout has {', '.join(new)}, which it had not before", red=True)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server
