"""Bytes that engines hold: the published figures, and the engines themselves."""

from dataclasses import replace
from typing import Any

import pytest

from coca_train.planning.states import Counts, States, states
from tests.faults.fork_server import ForkServer, slow_unless, values
from tests.planning.conftest import TINY, configure

N = 7_500_000_000  # the ZeRO paper's example
ALL = Counts(N, N, 0)


def held(kind: str, dtype: str, zero: int, n_gpus: int, counts: Counts = ALL, accumulates: bool = False) -> States:
    config = configure(
        f"engine={kind}", f"engine.dtype={dtype}", f"engine.zero_stage={zero}", "engine.bucket_size=1000"
    )
    return states(config.engine, counts, n_gpus, accumulates)


def kept(found: States) -> int:
    return found.lasting + found.own_gradients + found.summed_gradients


@pytest.mark.parametrize(("zero", "gb"), [(1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_papers_figure_1(zero: int, gb: float) -> None:
    """7.5B parameters on 64 GPUs, mixed precision (arXiv 1910.02054): 2 + 2 + 12 bytes a parameter, shared out."""
    assert kept(held("deepspeed", "fp16", zero, 64)) / 1e9 == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize(
    ("kind", "dtype", "zero", "per_parameter"),
    [
        ("local", "fp32", 0, 4 + 8 + 4),
        ("local", "bf16", 0, 2 + 4 + 8 + 2),
        ("deepspeed", "fp32", 0, 4 + 8 + 4),
        ("deepspeed", "fp32", 1, 4 + 4 + 8 + 4),
        ("deepspeed", "fp16", 1, 2 + 4 + 8 + 2),
        ("deepspeed", "bf16", 1, 2 + 4 + 8 + 4 + 2),  # sums in float32, not sharded, beside autograd's own
        ("deepspeed", "bf16", 2, 2 + 4 + 8 + 4),
        ("deepspeed", "bf16", 3, 2 + 4 + 8 + 4),
        ("deepspeed", "fp32", 3, 4 + 4 + 8 + 4),
    ],
)
def test_bytes_a_parameter_on_one_gpu(kind: str, dtype: str, zero: int, per_parameter: int) -> None:
    assert kept(held(kind, dtype, zero, 1)) == per_parameter * N


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_n_gpus_share(zero: int) -> None:
    one, many = (held("deepspeed", "bf16", zero, n) for n in (1, 8))
    assert (many.masters, many.moments) == (one.masters / 8, one.moments / 8)
    assert many.weights == (one.weights / 8 if zero == 3 else one.weights)
    assert many.summed_gradients == (one.summed_gradients if zero == 1 else one.summed_gradients / 8)


@pytest.mark.parametrize(("kind", "zero"), [("local", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)])
def test_frozen_parameters_cost_their_weights_alone(kind: str, zero: int) -> None:
    counts = Counts(1_000_000, 80_000, 0)
    found = held(kind, "bf16", zero, 1, counts)
    assert found.weights == 2_000_000
    assert kept(found) - found.weights == kept(held(kind, "bf16", zero, 1, Counts(80_000, 80_000, 0))) - 160_000


def test_shares_are_rounded_up() -> None:
    assert held("deepspeed", "bf16", 1, 3, Counts(10, 10, 0)).masters == 4 * 4


def test_what_comes_and_goes() -> None:
    """Copies for a moment, buckets, gathered weights and validations, from the table in states.py."""
    small = Counts(1000, 1000, 8)
    assert held("local", "bf16", 0, 1, small).afterwards == 2000
    assert held("local", "bf16", 0, 1, small, accumulates=True).summed_gradients == 4000
    assert held("local", "bf16", 0, 1, small, accumulates=True).afterwards == 0
    assert held("deepspeed", "bf16", 1, 1, small).afterwards == 4000
    assert held("deepspeed", "bf16", 1, 1, Counts(1000, 1000, 0)).afterwards == 0
    assert held("deepspeed", "bf16", 1, 1, Counts(N, N, 8)).afterwards == 0
    assert held("deepspeed", "fp16", 1, 2, small).afterwards == 500 * (2 + 4)
    assert held("deepspeed", "fp32", 0, 1, ALL).afterwards == 4 * 500_000_000
    assert held("deepspeed", "bf16", 3, 1, ALL).afterwards == 4 * 1_000_000_000
    assert held("deepspeed", "bf16", 3, 2, ALL).gathered == 2 * 1_000_000_000
    assert held("deepspeed", "bf16", 3, 1, ALL).gathered == 0
    assert held("deepspeed", "bf16", 3, 64, ALL).validating == 2 * N
    assert held("deepspeed", "bf16", 2, 64, ALL).validating == 0
    assert held("deepspeed", "bf16", 2, 1, small).buckets == 1000 * (2 + 4)
    assert held("deepspeed", "fp16", 1, 1, small).buckets == 1000 * 2
    assert held("deepspeed", "fp32", 2, 1, small, accumulates=True).summed_gradients == 2 * 4000
    assert held("deepspeed", "bf16", 1, 8, Counts(1000, 80, 0)).starting == 4000
    assert held("deepspeed", "bf16", 3, 8, Counts(1000, 80, 0)).starting == 250


QUICK = [
    ("local", "bf16", 0, 1, "*.k.weight"),
    ("deepspeed", "bf16", 1, 2, "*"),
    ("deepspeed", "bf16", 3, 2, "*.mlp.*"),
]
EVERY = [
    *QUICK,
    ("local", "fp32", 0, 1, "*"),
    ("deepspeed", "fp32", 0, 1, "*.k.weight"),
    ("deepspeed", "fp32", 1, 1, "*"),
    ("deepspeed", "fp32", 3, 1, "*.k.weight"),
    ("deepspeed", "bf16", 1, 1, "*.k.weight"),
    ("deepspeed", "bf16", 2, 2, "*"),
]


@pytest.mark.parametrize(("kind", "dtype", "zero", "n_ranks", "trainable"), slow_unless(QUICK, EVERY))
def test_a_new_engine_holds_what_lasts(
    server: ForkServer, kind: str, dtype: str, zero: int, n_ranks: int, trainable: str
) -> None:
    given: dict[str, Any] = {"kind": kind, "dtype": dtype, "zero_stage": zero, "device": "cpu", "bucket_size": 200_000}
    ranks = values(server.run("tests.planning.engines:held", {"trainable": [trainable]} | given, ranks=n_ranks))
    counts = Counts(ranks[0]["all"], ranks[0]["trained"], 0)
    plan = states(replace(configure(*TINY).engine, **given), counts, n_ranks, accumulates=False)
    expected = plan.lasting
    if zero == 3 or (zero == 1 and dtype == "bf16"):
        expected += plan.summed_gradients  # made at once
    if zero == 3:
        expected += plan.buckets
    for rank in ranks:
        assert rank["bytes"] == pytest.approx(expected, rel=0.01)
