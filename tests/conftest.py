"""What all tests share: one process that forks the ranks of every trial."""

import pytest

from tests.faults.fork_server import ForkServer, shared


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return shared()
