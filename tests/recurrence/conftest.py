"""The session's fork server."""

import pytest

from tests.faults.fork_server import ForkServer, shared


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return shared()
