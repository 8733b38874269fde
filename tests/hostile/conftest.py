from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.hostile.world import make


@pytest.fixture(scope="session")
def world(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make(folder, server)
    return folder
