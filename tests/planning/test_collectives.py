"""What is said of DeepSpeed's collectives, and of what its update moves, against DeepSpeed."""

from typing import Any

import pytest

from coca_train.planning.engines import LIVE, ParameterCounts, collectives, engine_update
from tests.faults.fork_server import ForkServer, values
from tests.planning.conftest import configure

NAMES = {
    "all-reduce": "allreduce_",
    "reduce": "reduce_",
    "all-gather": "_allgather_base_",
    "reduce-scatter": "_reduce_scatter_base_",
}


def run(server: ForkServer, words: list[str], n_micro_batches: int, **how: Any) -> dict[str, Any]:
    given = {"words": words, "n_ranks": 8, "n_micro_batches": n_micro_batches} | how
    return values(server.run("tests.planning.sent:sent", given, ranks=1, timeout_s=300))[0]


def said(words: list[str], n_micro_batches: int) -> dict[str, int]:
    """Bytes a parameter of a step."""
    found = collectives(configure(*words).engine, ParameterCounts(1, 1, 0), 8, n_micro_batches)
    return {NAMES[each.name]: each.per_parameter * each.times for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("n_micro_batches", [1, 3])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_rank_of_eight_sends_what_is_said(server: ForkServer, zero: int, dtype: str, n_micro_batches: int) -> None:
    if (zero, dtype) == (0, "bf16"):
        pytest.skip("refused")
    words = [f"engine.zero_stage={zero}", f"engine.dtype={dtype}"]
    seen = run(server, words, n_micro_batches)
    assert seen["sent"] == pytest.approx(said(words, n_micro_batches), rel=0.01)
    if zero < 2:  # from then on gradients are added up in the backward pass, where they are not told from its own
        assert engine_update(configure(*words).engine).nbytes(1, 8, n_micro_batches) == pytest.approx(
            seen["update"], rel=0.08, abs=2
        )


OWNER, NARROW = "engine.gradient_reduction=owner", "engine.communication_dtype=bf16"
BF16 = {zero: ("engine.dtype=bf16", f"engine.zero_stage={zero}") for zero in (1, 2, 3)}
FP32 = {zero: ("engine.dtype=fp32", f"engine.zero_stage={zero}") for zero in (0, 1)}
OPTIONS = {
    "to the owner": (*BF16[2], OWNER),
    "to the owner, narrow": (*BF16[2], OWNER, NARROW),
    "to the owner, ZeRO 1 in fp32": (*FP32[1], OWNER),
    "ZeRO 1 in bf16 knows no owners": (*BF16[1], OWNER, NARROW),
    "ZeRO 0, narrow": (*FP32[0], NARROW),
    "scattered, narrow": (*BF16[3], NARROW),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_what_is_sent(server: ForkServer, name: str) -> None:
    words = list(OPTIONS[name])
    assert run(server, words, 2)["sent"] == pytest.approx(said(words, 2), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("n_micro_batches", [1, 3])
def test_large_models_are_gathered_twice_a_micro_batch(server: ForkServer, n_micro_batches: int) -> None:
    """As a small one is where DeepSpeed is told to keep nothing."""
    words = ["engine.zero_stage=3", "engine.dtype=bf16"]
    seen = run(server, words, n_micro_batches, released=True)
    large = collectives(configure(*words).engine, ParameterCounts(2 * LIVE, 10, 0), 8, n_micro_batches)[0]
    assert large.per_parameter * large.times == pytest.approx(seen["sent"]["_allgather_base_"], rel=0.05)
