"""Adapters in a plan: counted by hand, and as engines hold them."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from coca_train.config.schema import LoraConfig
from coca_train.planning.as_text import between, share
from coca_train.planning.engines import ParameterCounts, engine_states
from coca_train.planning.memory import gpu_memory
from coca_train.planning.meta_step import count_flops
from coca_train.planning.outline import Outline, outline
from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values
from tests.planning.conftest import QKV, TINY, configure, outlined, planned

RANK_8 = LoraConfig(rank=8, alpha=16.0)
# 6 layers, d_model 256; q is 256 x 256, k and v are 128 x 256: each A (8, 256), each B (8, outputs)
ADAPTERS = 6 * 8 * (3 * 256 + 256 + 128 + 128)
LOCAL = ("position=rope", "engine=local", "engine.dtype=bf16")


@cache
def adapted(*overrides: str, lora: LoraConfig | None = RANK_8) -> Outline:
    return outline(configure(*TINY, *LOCAL, *overrides), QKV, lora=lora)


def test_what_is_trained() -> None:
    plain, with_lora = outlined(*TINY, *LOCAL), adapted()
    assert (with_lora.n_trained, with_lora.n_parameters) == (ADAPTERS, plain.n_parameters + ADAPTERS)
    assert len(with_lora.trained) == 6 * 3 * 2
    assert share(with_lora) == "1.3 %"


def test_bytes_and_flops() -> None:
    """Masters, moments and gradients of the adapters alone; forward costs two FLOPs a number of them more."""
    with_lora, full = adapted(), adapted(lora=None)
    held = gpu_memory(with_lora, 1, "cpu").states
    assert (held.masters, held.moments) == (4 * ADAPTERS, 8 * ADAPTERS)
    assert held.own_gradients == 2 * ADAPTERS
    assert held.weights == 2 * with_lora.n_parameters
    flops, of_full = count_flops(with_lora), count_flops(full)
    assert flops.forward - of_full.forward == pytest.approx(2 * ADAPTERS, rel=1e-6)
    assert flops.backward < of_full.backward


def test_the_difference_between_stages() -> None:
    config = configure(*TINY, *LOCAL)
    full = planned("full", config, QKV)
    low, high = (replace(full, name=f"{n}", lora=LoraConfig(rank=n, alpha=16.0)) for n in (8, 64))
    lines = [between(pair, [outline(s.config, QKV, lora=s.lora) for s in pair]) for pair in ((full, low), (low, high))]
    assert "LoRA none -> rank 8, alpha 16" in lines[0]
    assert "LoRA rank 8, alpha 16 -> rank 64, alpha 16" in lines[1]


QUICK = [("deepspeed", "bf16", 3, 2)]
EVERY = [*QUICK, ("local", "bf16", 0, 1), ("deepspeed", "bf16", 1, 2), ("deepspeed", "bf16", 2, 1)]


@pytest.mark.parametrize(("kind", "dtype", "zero", "n_ranks"), slow_unless(QUICK, EVERY))
def test_engines_hold_what_is_planned(server: ForkServer, kind: str, dtype: str, zero: int, n_ranks: int) -> None:
    given: dict[str, Any] = {"kind": kind, "dtype": dtype, "zero_stage": zero, "device": "cpu", "bucket_size": 20_000}
    job = {"trainable": list(QKV), "rank": 8} | given
    ranks = values(server.run("tests.planning.engines:held", job, ranks=n_ranks))
    assert (ranks[0]["all"], ranks[0]["trained"]) == (adapted().n_parameters, ADAPTERS)
    plan = engine_states(
        replace(configure(*TINY).engine, **given), ParameterCounts(ranks[0]["all"], ADAPTERS, 0), n_ranks, False
    )
    expected = plan.lasting + plan.between
    for rank in ranks:
        assert rank["bytes"] == pytest.approx(expected, rel=0.01)
