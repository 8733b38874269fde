"""One Slurm for all tests that need a real one."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    with Cluster() as cluster:
        yield cluster
