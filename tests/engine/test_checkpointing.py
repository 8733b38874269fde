"""Activation checkpointing in every engine: the same losses and gradients, whatever is computed again.

The layouts are those of the recipes: ZeRO 3 gathers weights inside a block, more often in the backward pass or less.
"""

from functools import cache
from typing import Any

import pytest

from tests.cases import sampled
from tests.engine.test_schemes import SHIPPED
from tests.faults.fork_server import ForkServer, values

RUN = "tests.engine.test_schemes:train_model"
TRAINED: dict[str, dict[str, Any]] = {
    "everything": {},
    "T alone": {"trainable": ["blocks.*.attention.k.*"]},  # the first stage of CoCA into LLaMA
    "LoRA": {"trainable": ["blocks.*.attention.[qkv].*"], "lora_rank": 2},
}


@pytest.fixture(scope="module")
def alone(server: ForkServer) -> Any:
    """What the local engine computes of each in float32, keeping all activations."""

    @cache
    def train(trained: str) -> dict[str, Any]:
        return values(server.run(RUN, {"steps": 3, "scheme": SHIPPED["coca"], "kind": "local"} | TRAINED[trained]))[0]

    return train


@pytest.mark.parametrize(
    ("way", "zero", "ranks", "trained"),
    sampled(["none", "selective", "full"], [0, 1, 2, 3], [1, 2, 4], TRAINED, strength=2),
)
def test_what_is_kept_changes_nothing(
    server: ForkServer, alone: Any, way: str, zero: int, ranks: int, trained: str
) -> None:
    job = {"steps": 3, "scheme": SHIPPED["coca"], "zero_stage": zero, "activation_checkpointing": way}
    of_ranks = values(server.run(RUN, job | TRAINED[trained], ranks=ranks))
    expected = alone(trained)
    for result in of_ranks:
        assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert result["norms"] == pytest.approx(expected["norms"], rel=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_selective_checkpointing_is_bit_exact_under_zero_3(server: ForkServer, dtype: str) -> None:
    """It keeps the same numbers that it would compute again."""
    job = {"steps": 3, "scheme": SHIPPED["coca"], "zero_stage": 3, "dtype": dtype}
    ways = [
        values(server.run(RUN, job | {"activation_checkpointing": way}, ranks=2))[0] for way in ("none", "selective")
    ]
    assert ways[0]["losses"] == ways[1]["losses"] and ways[0]["norms"] == ways[1]["norms"]
