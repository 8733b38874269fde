"""What each rank has of a state, what it draws of it, and checkpoints of before in every engine."""

from pathlib import Path

import pytest

from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values

RUN, BEGIN = "tests.engine.scenarios:train", "tests.engine.scenarios:beginning"
HALF, END = 3, 6
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


CASES = [(0, "fp32", 2), (1, "fp32", 2), (2, "bf16", 2), (3, "fp32", 2), (3, "bf16", 2), (1, "bf16", 1)]


@pytest.mark.parametrize(("stage", "dtype", "ranks"), slow_unless([CASES[2], CASES[3]], CASES))
def test_a_checkpoint_of_before_goes_on_bit_for_bit(
    server: ForkServer, tmp_path: Path, stage: int, dtype: str, ranks: int
) -> None:
    job = {"zero_stage": stage, "dtype": dtype}
    before = {"steps": END, "save": str(tmp_path), "save_at": HALF, "old_layout": True} | job
    whole = values(server.run(RUN, before, ranks=ranks))[0]
    resumed = values(server.run(RUN, {"steps": END, "load": str(tmp_path)} | job, ranks=ranks))[0]
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert (resumed["losses"], resumed["digest"]) == (whole["losses"][HALF:], whole["digest"])
