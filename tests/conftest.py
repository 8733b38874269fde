"""What all tests share: the collector of garbage, and one process that forks the ranks of every trial."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.fork_server import ForkServer

gc.disable()  # what is imported and collected stays until the end: looking through it takes longer than making it


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Those that fork ranks come first: they take longest, and one worker gets them all, so that one server will do."""
    items.sort(key=lambda item: "server" not in item.fixturenames)


def pytest_collection_finish() -> None:
    """Garbage is looked for again, but only in what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server
