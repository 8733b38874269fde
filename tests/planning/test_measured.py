"""What the plan says against memory that real steps took on this CPU: tests/planning/measured.py measures it,
docs/plan.md has its tables."""

import pytest

from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer
from tests.planning.measured import ENGINES, SHARES, measurement, once, planned

SMALLER = ("model.n_layers=4", "model.vocab_size=8000", "train.seq_len=128")
QUICK = {
    "local, keys": once("engine=local", "engine.dtype=bf16", *SMALLER, trainable=("blocks.*.attention.k.weight",)),
}
CASES = QUICK | ENGINES | {f"16 layers, {name}": case for name, case in SHARES.items()}
# ZeRO 2 in float32 keeps the sums of two micro batches apart: memory that is asked for, and not touched at the peak.
UNTOUCHED = {"ZeRO 2 fp32, two micro batches, 2 ranks": 1.12}
NOISE_MIB = 12  # libraries that come in while an engine is made


@pytest.mark.parametrize("name", slow_unless(QUICK, CASES))
def test_real_steps_take_what_was_planned(server: ForkServer, name: str) -> None:
    """Within 4 %: at the start, in a step, between steps, in a validation."""
    plan, real = planned(CASES[name]), measurement(server, CASES[name])
    for phase, n_mib in plan.items():
        over = UNTOUCHED.get(name, 1.04) if phase == "step" else 1.04
        assert real[phase] / 1.04 - NOISE_MIB <= n_mib <= real[phase] * over + NOISE_MIB, (phase, plan, real)
