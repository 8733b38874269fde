"""What is said of DeepSpeed's collectives, and of what its update moves, against DeepSpeed."""

from typing import Any

import pytest

from coca_train.planning.collectives import collectives, update
from coca_train.planning.states import ParameterCounts
from tests.faults.fork_server import ForkServer, values
from tests.planning.conftest import configure

NAMES = {"all-reduce": "allreduce_", "all-gather": "_allgather_base_", "reduce-scatter": "_reduce_scatter_base_"}


def run(server: ForkServer, words: list[str], n_micro_batches: int, **how: Any) -> dict[str, Any]:
    given = {"words": words, "n_ranks": 8, "n_micro_batches": n_micro_batches} | how
    return values(server.run("tests.planning.sent:sent", given, ranks=1, timeout_s=300))[0]


@pytest.mark.slow
@pytest.mark.parametrize("n_micro_batches", [1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_rank_of_eight_sends_what_is_said(server: ForkServer, zero: int, dtype: str, n_micro_batches: int) -> None:
    if (zero, dtype) == (0, "bf16"):
        pytest.skip("refused")
    words = [f"engine.zero_stage={zero}", f"engine.dtype={dtype}"]
    seen = run(server, words, n_micro_batches)
    engine = configure(*words).engine
    said = {
        NAMES[each.name]: each.per_parameter * each.times
        for each in collectives(engine, ParameterCounts(1, 1, 0), 8, n_micro_batches)
    }
    assert seen["sent"] == pytest.approx(said, rel=0.01)
    if zero < 2:  # from then on gradients are added up in the backward pass, where they are not told from its own
        assert update(engine).nbytes(1, 8, n_micro_batches) == pytest.approx(seen["update"], rel=0.08, abs=2)


@pytest.mark.slow
def test_large_models_are_gathered_twice_a_micro_batch(server: ForkServer) -> None:
    """As the first step does, in which nothing stays gathered."""
    seen = run(server, ["engine.zero_stage=3", "engine.dtype=bf16"], 2, first=True)
    said = collectives(configure("engine.zero_stage=3").engine, ParameterCounts(2 * 10**9, 10, 0), 8, 2)[0]
    assert said.per_parameter * said.times == pytest.approx(seen["sent"]["_allgather_base_"], rel=0.05)
