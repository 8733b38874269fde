"""Bytes that engines hold: the published figures, and the engines themselves."""

from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from coca_train.planning.engines import REDUCED_AT_ONCE, ParameterCounts, States, engine_states
from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values
from tests.planning.conftest import TINY, configure

N = 7_500_000_000  # the ZeRO paper's example
ALL = ParameterCounts(N, N, 0)


def held(
    kind: str, dtype: str, zero: int, n_gpus: int, counts: ParameterCounts = ALL, accumulates: bool = False
) -> States:
    config = configure(
        f"engine={kind}", f"engine.dtype={dtype}", f"engine.zero_stage={zero}", "engine.bucket_size=1000"
    )
    return engine_states(config.engine, counts, n_gpus, accumulates)


def kept(states: States) -> int:
    return states.lasting + states.own_gradients + states.summed_gradients


@pytest.mark.parametrize(("zero", "gb"), [(1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_papers_figure_1(zero: int, gb: float) -> None:
    """7.5B parameters on 64 GPUs, mixed precision (arXiv 1910.02054): 2 + 2 + 12 bytes a parameter, shared out."""
    assert kept(held("deepspeed", "fp16", zero, 64)) / 1e9 == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize(("kind", "zero"), [("local", 0), ("deepspeed", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_muon_keeps_one_moment(kind: str, zero: int) -> None:
    """4 bytes of a matrix of a block, 8 of everything else."""
    counts, cut = replace(ALL, of_muon=6_000_000_000, with_one_moment=6_000_000_000), 8 if zero else 1
    own = held(kind, "fp32", zero, 8, counts)
    assert own.moments == (4 * 6_000_000_000 + 8 * 1_500_000_000) / cut
    assert zero < 2 or own.afterwards >= 6 * 6_000_000_000 / cut


# Of 1001 parameters, 201 of them trained, on 8 GPUs: shards of 126 and 26. By hand, from the table in engines.py.
COUNTS = ParameterCounts(1001, 201, 8, at_once=90)
NOTHING = {field.name: 0 for field in fields(States)}
BY_HAND = {
    ("local", "fp32", 0): {"weights": 4004, "moments": 1608, "own_gradients": 804, "starting": 4004},
    ("local", "bf16", 0): {
        "weights": 2002, "masters": 804, "moments": 1608, "own_gradients": 402, "afterwards": 402, "starting": 2002,
    },
    ("deepspeed", "fp32", 0): {
        "weights": 4004, "moments": 1608, "own_gradients": 804, "afterwards": 804, "starting": 4004,
    },
    ("deepspeed", "bf16", 1): {
        "weights": 2002, "masters": 104, "moments": 208, "own_gradients": 402, "summed_gradients": 804, "between": 804,
        "afterwards": 804, "starting": 4004,
    },
    ("deepspeed", "fp16", 1): {
        "weights": 2002, "masters": 104, "moments": 208, "own_gradients": 402, "buckets": 2000, "afterwards": 156,
        "starting": 4004,
    },
    ("deepspeed", "fp32", 1): {
        "weights": 4004, "masters": 104, "moments": 208, "own_gradients": 804, "buckets": 4000, "afterwards": 104,
        "starting": 4808,
    },
    ("deepspeed", "bf16", 2): {
        "weights": 2002, "masters": 104, "moments": 208, "summed_gradients": 104, "buckets": 8000, "starting": 4004,
    },
    ("deepspeed", "fp16", 2): {
        "weights": 2002, "masters": 104, "moments": 208, "summed_gradients": 52, "buckets": 4000, "afterwards": 156,
        "starting": 4004,
    },
    ("deepspeed", "fp32", 2): {
        "weights": 4004, "masters": 104, "moments": 208, "summed_gradients": 104, "buckets": 8000, "afterwards": 104,
        "starting": 4808,
    },
    ("deepspeed", "bf16", 3): {
        "weights": 252, "masters": 104, "moments": 208, "summed_gradients": 104, "buckets": 4804, "between": 4104,
        "gathered": 2002, "arriving": 180, "afterwards": 104, "starting": 252,
    },
    ("deepspeed", "fp16", 3): {
        "weights": 252, "masters": 104, "moments": 208, "summed_gradients": 52, "buckets": 2402, "between": 2052,
        "gathered": 2002, "arriving": 180, "afterwards": 156, "starting": 252,
    },
    ("deepspeed", "fp32", 3): {
        "weights": 504, "masters": 104, "moments": 208, "summed_gradients": 104, "buckets": 4804, "between": 4104,
        "gathered": 4004, "arriving": 360, "afterwards": 104, "starting": 504,
    },
}  # fmt: skip
# What another micro batch of the same step changes.
ADDED_UP = {
    ("local", "bf16", 0): {"summed_gradients": 804, "afterwards": 0},
    ("deepspeed", "fp16", 2): {"summed_gradients": 104},
    ("deepspeed", "fp32", 2): {"summed_gradients": 208},
}


@pytest.mark.parametrize("engine", BY_HAND)
def test_every_engine_by_hand(engine: tuple[str, str, int]) -> None:
    n_gpus = 1 if engine[0] == "local" else 8
    once = NOTHING | BY_HAND[engine]
    assert asdict(held(*engine, n_gpus, COUNTS)) == once
    assert asdict(held(*engine, n_gpus, COUNTS, accumulates=True)) == once | ADDED_UP.get(engine, {})


def test_what_comes_and_goes() -> None:
    """What is bounded: the sizes of DeepSpeed's own pieces."""
    small = ParameterCounts(1000, 1000, 8)
    assert held("deepspeed", "bf16", 1, 1, ParameterCounts(1000, 1000, 0)).afterwards == 0
    assert held("deepspeed", "bf16", 1, 1, ParameterCounts(N, N, 8)).afterwards == 0
    assert held("deepspeed", "fp32", 0, 1, ALL).afterwards == 4 * 500_000_000
    assert held("deepspeed", "bf16", 3, 1, ALL).afterwards == 4 * 1_000_000_000
    assert held("deepspeed", "bf16", 3, 2, ALL).gathered == 2 * 1_000_000_000
    assert held("deepspeed", "bf16", 3, 1, ALL).gathered == 0
    assert held("deepspeed", "bf16", 3, 2, replace(ALL, at_once=10**6)).arriving == 2 * 10**6
    assert held("deepspeed", "bf16", 1, 1, ParameterCounts(REDUCED_AT_ONCE + 8, REDUCED_AT_ONCE + 8, 8)).afterwards > 0
    assert held("deepspeed", "bf16", 1, 1, ParameterCounts(REDUCED_AT_ONCE + 9, REDUCED_AT_ONCE + 9, 8)).afterwards == 0
    assert held("deepspeed", "bf16", 1, 1, small).starting == 4000  # float32 before it is cast, or both copies in bf16
    assert held("deepspeed", "fp32", 1, 1, small).starting == 8000
    assert held("deepspeed", "bf16", 3, 1, small).buckets == 4 * (1000 + 1000)  # and no more than is trained
    assert held("deepspeed", "bf16", 3, 1, ParameterCounts(5000, 5000, 8)).buckets == 4 * (1000 + 1000)


QUICK = [
    ("local", "bf16", 0, 1, "*.k.weight"),
    ("deepspeed", "bf16", 1, 2, "*"),
]  # ZeRO 3: test_lora.py
EVERY = [
    *QUICK,
    ("deepspeed", "bf16", 3, 2, "*.mlp.*"),
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
    counts = ParameterCounts(ranks[0]["all"], ranks[0]["trained"], 0)
    plan = engine_states(replace(configure(*TINY).engine, **given), counts, n_ranks, accumulates=False)
    for rank in ranks:
        assert rank["bytes"] == pytest.approx(plan.lasting + plan.between, rel=0.01)
