"""What all tests share: the collector of garbage, and one process that forks the ranks of every trial."""

import gc

import pytest

from tests.faults.fork_server import ForkServer, shared

gc.disable()  # what is imported and collected stays until the end: looking through it takes longer than making it


def pytest_collection_finish() -> None:
    """Garbage is looked for again, but only in what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return shared()
