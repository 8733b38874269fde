"""A resumed run is the run: bit for bit on the same layout, within rounding on another ZeRO stage or world size."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.cases import slow_unless
from tests.faults.fork_server import ForkServer, values

RUN = "tests.engine.scenarios:train"
HALF, END = 3, 6
LAYOUTS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]
FP16 = [(1, "fp16"), (2, "fp16"), (3, "fp16")]  # with the loss scaler's state


class Runs:
    """Uninterrupted runs of END steps with a checkpoint at HALF, made when first asked for."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self._folder, self._made = server, folder, {}

    def get(self, stage: int, dtype: str, ranks: int, kind: str = "deepspeed") -> tuple[str, dict[str, Any]]:
        key = f"{kind}{stage}-{dtype}-{ranks}"
        if key not in self._made:
            (self._folder / key).mkdir()
            job = {"steps": END, "save": str(self._folder / key), "save_at": HALF}
            job |= {"zero_stage": stage, "dtype": dtype, "kind": kind}
            self._made[key] = values(self._server.run(RUN, job, ranks=ranks))[0]
        return str(self._folder / key), self._made[key]

    def resume(self, run_dir: str, ranks: int, **job: Any) -> dict[str, Any]:
        return values(self._server.run(RUN, {"steps": END, "load": run_dir} | job, ranks=ranks))[0]


@pytest.fixture(scope="module")
def runs(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(server, tmp_path_factory.mktemp("runs"))


def relative(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("stage", "dtype"), slow_unless([LAYOUTS[0], LAYOUTS[3], LAYOUTS[4], FP16[1]], LAYOUTS + FP16))
def test_same_layout_is_bit_exact(runs: Runs, stage: int, dtype: str) -> None:
    run_dir, whole = runs.get(stage, dtype, 2)
    resumed = runs.resume(run_dir, 2, zero_stage=stage, dtype=dtype)
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert resumed["losses"] == whole["losses"][HALF:]
    assert resumed["digest"] == whole["digest"]
    assert resumed["counters"] == whole["counters"]
    assert ("loss_scaler" in whole["counters"]) == (dtype == "fp16")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_local_is_bit_exact(runs: Runs, dtype: str) -> None:
    run_dir, whole = runs.get(0, dtype, 1, "local")
    resumed = runs.resume(run_dir, 1, kind="local", dtype=dtype)
    assert (resumed["losses"], resumed["digest"]) == (whole["losses"][HALF:], whole["digest"])


EVERY = [(a, w, b, v) for a in range(4) for w in (1, 2) for b in range(4) for v in (1, 2) if (a, w) != (b, v)]


@pytest.mark.parametrize(
    ("old", "old_ranks", "new", "new_ranks"), slow_unless([(0, 2, 2, 1), (3, 2, 1, 1), (3, 2, 0, 2)], EVERY)
)
def test_other_layout_within_rounding(runs: Runs, old: int, old_ranks: int, new: int, new_ranks: int) -> None:
    run_dir, whole = runs.get(old, "fp32", old_ranks)
    resumed = runs.resume(run_dir, new_ranks, zero_stage=new)
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert relative(resumed["losses"], whole["losses"][HALF:]) <= 4.8e-7
    assert resumed["counters"] == whole["counters"]


BF16 = [(1, 2, 3, 1), (3, 2, 2, 2), (2, 1, 1, 2)]


@pytest.mark.parametrize(("old", "old_ranks", "new", "new_ranks"), slow_unless(BF16[:1], BF16))
def test_other_layout_bf16(runs: Runs, old: int, old_ranks: int, new: int, new_ranks: int) -> None:
    run_dir, whole = runs.get(old, "bf16", old_ranks)
    resumed = runs.resume(run_dir, new_ranks, zero_stage=new, dtype="bf16")
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert relative(resumed["losses"], whole["losses"][HALF:]) <= 1.7e-4


def test_local_and_deepspeed_share_checkpoints(runs: Runs) -> None:
    run_dir, whole = runs.get(3, "fp32", 2)
    resumed = runs.resume(run_dir, 1, kind="local")
    assert resumed["loaded_digest"] == whole["saved_digest"]
    assert relative(resumed["losses"], whole["losses"][HALF:]) <= 4.8e-7


@pytest.mark.parametrize("stage", slow_unless([3], [1, 3]))
def test_frozen_parameters_and_buffers_are_restored(server: ForkServer, runs: Runs, tmp_path: Path, stage: int) -> None:
    """DeepSpeed's universal checkpoint leaves them at their random start, silently."""
    job = {"zero_stage": stage, "trainable": ["blocks.*.mix.*"]}
    whole = values(server.run(RUN, {"steps": END, "save": str(tmp_path), "save_at": HALF} | job, ranks=2))[0]
    export = tmp_path / "resumed.safetensors"
    resumed = runs.resume(str(tmp_path), 2, export=str(export), **job)
    assert resumed["digest"] == whole["digest"]
    assert len(whole["trainable"]) == 4
    state = load_file(export)
    assert "model/gain" in state and "model/angles" not in state
    assert {name for name in state if name.startswith("exp_avg/")} == {f"exp_avg/{n}" for n in whole["trainable"]}
