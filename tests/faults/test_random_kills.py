"""kill -9 of one process or all, at a random moment of each part of the work, and the same command again until it ends
well: what is left is bit for bit what is left where nobody killed.

`COCA_KILLS` is how many kills there are in all.
"""

import os
import random
from collections import Counter

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.works import PARTS, ZERO, Works

KILLS = int(os.environ.get("COCA_KILLS", "36"))
N_RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def works(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Works:
    return Works(server, tmp_path_factory.mktemp("works"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("ranks", N_RANKS)
def test_killed_at_random_moments(works: Works, part: str, ranks: int) -> None:
    choose, struck, trials = random.Random(f"{part} {ranks}"), Counter[str](), 0
    needed = -(-KILLS // (len(PARTS) * len(N_RANKS)))
    while struck[part] < needed and trials < 3 * needed:
        struck.update(works.of(part, ranks, ZERO[trials % 2]).trial(part, choose))
        trials += 1
    print(f"\n{part}, {ranks} ranks: {trials} trials, kills {dict(struck)}, all ended alike")
    assert struck
