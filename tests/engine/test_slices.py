"""What each rank has of a state, and what it draws of it."""

import pytest

from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values

BEGIN = "tests.engine.scenarios:beginning"
LAYOUTS = [(stage, ranks) for stage in range(4) for ranks in (2, 4)]


@pytest.mark.parametrize(("stage", "ranks"), slow_unless([(1, 4), (3, 2)], LAYOUTS))
def test_shards_are_even_and_each_weight_is_drawn_once(server: ForkServer, stage: int, ranks: int) -> None:
    """The weights are those of one process, whichever rank has drawn them."""
    alone = values(server.run(BEGIN, {"kind": "local"}))[0]
    each = values(server.run(BEGIN, {"zero_stage": stage}, ranks=ranks))
    assert [one["digest"] for one in each] == [alone["digest"]] * ranks
    assert max(each[0]["sizes"]) / (sum(each[0]["sizes"]) / ranks) <= 1.05, each[0]["sizes"]
    drawn = [name for one in each for name in one["drawn"]]
    assert sorted(drawn) == sorted(alone["drawn"]) and len(set(drawn)) == len(drawn)
    assert max(len(one["drawn"]) for one in each) == -(-len(drawn) // ranks)
    # A walk over all modules: once for the spec, once for the slices, whatever the number of tensors.
    assert [one["lists"] for one in (alone, *each)] == [2] * (1 + ranks)
