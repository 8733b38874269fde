"""A flipped bit of memory between two steps, or in one of two computations of a gradient, is found, and its rank."""

import random

import pytest
import torch

from coca_train.settings import load
from coca_train.training.recheck import digest
from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values
from tests.training.rechecking import flip

TRAIN = "tests.training.rechecking:train"
ENGINES = [
    ("local", 0, "bf16", 1), ("deepspeed", 0, "fp32", 2), ("deepspeed", 1, "bf16", 2), ("deepspeed", 2, "bf16", 2),
    ("deepspeed", 2, "fp32", 2), ("deepspeed", 3, "bf16", 2), ("deepspeed", 3, "fp32", 2),
]  # fmt: skip
WHAT = ("computing", "master", "moment", "gradient")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_one_bit_changes_a_digest(dtype: torch.dtype) -> None:
    choose = random.Random(1)
    tensor = (torch.randn(5, 77) * 50).to(dtype)
    before = int(digest(tensor))
    assert before == int(digest(tensor.clone())) != int(digest(tensor.flip(0)))
    for _ in range(300):
        changed = tensor.clone()
        flip(changed, choose)
        assert int(digest(changed)) != before


def test_a_digest_is_that_of_its_parts_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    bits = tensor.view(torch.int32).tolist()
    expected = sum(value * (2 * i + 1) for i, value in enumerate(bits)) % 2**64
    monkeypatch.setattr("coca_train.training.recheck.CHUNK", 7)
    assert int(digest(tensor)) % 2**64 == expected


@pytest.mark.parametrize("engine", slow_unless([(ENGINES[0],), (ENGINES[2],), (ENGINES[6],)], [(e,) for e in ENGINES]))
def test_a_recheck_changes_nothing(server: ForkServer, engine: tuple[str, int, str, int]) -> None:
    kind, stage, dtype, ranks = engine
    job = {"kind": kind, "zero_stage": stage, "dtype": dtype}
    plain, checked = (values(server.run(TRAIN, job | {"every": every}, ranks)) for every in (0, 1))
    assert checked == plain and checked[0]["skipped"] == 0


def found(server: ForkServer, engine: tuple[str, int, str, int], what: str, seed: int) -> None:
    """In 20 of 20."""
    kind, stage, dtype, ranks = engine
    choose = random.Random(f"{engine} {what} {seed}")
    fault = {"what": what, "step": choose.randrange(1, 4), "rank": choose.randrange(ranks), "seed": seed}
    job = {"kind": kind, "zero_stage": stage, "dtype": dtype, "fault": fault}
    ended = server.run("tests.training.rechecking:train", job, ranks)
    for rank in ended:
        assert rank.code != 0, fault
        assert f"E-RUN-34 step {fault['step'] + 1}: rank {fault['rank']}: " in rank.text, (fault, rank.text[-1500:])


QUICK = [(ENGINES[0], "computing"), (ENGINES[2], "gradient"), (ENGINES[6], "moment")]
EVERY = [(engine, what) for engine in ENGINES for what in WHAT]


@pytest.mark.parametrize(("engine", "what"), slow_unless(QUICK, EVERY))
def test_a_flipped_bit_is_found(server: ForkServer, engine: tuple[str, int, str, int], what: str) -> None:
    for seed in range(2 if (engine, what) in QUICK else 20):
        found(server, engine, what, seed)


def test_on_gpus_it_needs_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    load(["engine.recheck_every_steps=10"])
    monkeypatch.setattr("coca_train.config.check._gpus", lambda: 1)
    with pytest.raises(ValueError, match="E-CFG-88"):
        load(["engine.recheck_every_steps=10"])
    load(["engine.recheck_every_steps=10", "engine.deterministic=true"])
    load(["engine.recheck_every_steps=10", "engine.device=cpu"])
