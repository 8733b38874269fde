"""DeepSpeed's traps (docs/operations.md): each has a guard, and here is the proof."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coca_train.engine.base import parameters_on_meta, without_initial_values
from tests.cases import slow_unless
from tests.engine.scenarios import TinyGPT
from tests.faults.fork_server import ForkServer, values

RUN = "tests.engine.scenarios:train"
LAYOUTS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


POISONED = [(*layout, what) for layout in [*LAYOUTS, (1, "fp16"), (3, "fp16")] for what in ("loss", "grad")]
QUICK = [(0, "fp32", "loss"), (0, "fp32", "grad"), (1, "bf16", "loss"), (2, "bf16", "grad"), (3, "fp32", "loss")]


@pytest.mark.parametrize(("stage", "dtype", "what"), slow_unless(QUICK, POISONED))
def test_nan_on_one_rank_skips_on_all(server: ForkServer, stage: int, dtype: str, what: str) -> None:
    """Trap: stage 0 lets the NaN into the weights; a NaN on one rank is invisible in rank 0's loss."""
    job = {"steps": 4, "zero_stage": stage, "dtype": dtype, "poison": {"step": 2, "rank": 1, "what": what}}
    for result in values(server.run(RUN, job, ranks=2)):
        assert result["skips"] == [False, False, True, False]
        assert (result["counters"]["adam_step"], result["counters"]["skipped_steps"]) == (3.0, 1)
        assert (result["losses"][2] is None) == (what == "loss")
        assert result["losses"][3] is not None and result["losses"][0] > 0


@pytest.mark.parametrize("what", slow_unless(["loss"], ["loss", "grad"]))
def test_local_skips_too(server: ForkServer, what: str) -> None:
    job = {"steps": 4, "kind": "local", "poison": {"step": 2, "rank": 0, "what": what}}
    assert values(server.run(RUN, job))[0]["skips"] == [False, False, True, False]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_stage_0_in_low_precision_is_refused(server: ForkServer, dtype: str) -> None:
    """Trap: a phantom optimizer step; losses 2e-2 off, silently."""
    rank = server.run(RUN, {"steps": 1, "zero_stage": 0, "dtype": dtype})[0]
    assert rank.code == 1 and "AssertionError" in rank.text


@pytest.mark.parametrize("stage", slow_unless([1], [0, 1, 3]))
def test_every_process_group_has_the_timeout(server: ForkServer, stage: int) -> None:
    """Trap: DeepSpeed's groups of ZeRO 0 to 2 wait 30 minutes whatever is asked."""
    for timeouts in values(server.run("tests.engine.scenarios:group_timeouts", {"stage": stage}, ranks=2)):
        assert set(timeouts) == {60.0}


SWAPS = [(1, "blocks.0.down.weight"), (0, "blocks.0.down.weight"), (3, "blocks.*")]


@pytest.mark.parametrize(("stage", "load"), slow_unless(SWAPS[:1], SWAPS))
def test_same_shape_swap_of_trained_parameters_is_refused(
    server: ForkServer, tmp_path: Path, stage: int, load: str
) -> None:
    """Trap: DeepSpeed's stages 0 and 1 load another trained set of equal shapes into the wrong tensors."""
    job = {"steps": 1, "zero_stage": stage, "trainable": ["blocks.1.down.weight"], "save": str(tmp_path)}
    values(server.run(RUN, job, ranks=2))
    again = {"steps": 2, "zero_stage": stage, "trainable": [load], "load": str(tmp_path)}
    for rank in server.run(RUN, again, ranks=2):
        assert rank.code == 4 and "E-CKP-15" in rank.text and "blocks.0.down.weight" in rank.text


def test_pattern_that_matches_nothing(server: ForkServer) -> None:
    rank = server.run(RUN, {"steps": 1, "kind": "local", "trainable": ["blocks.0.upp.*"]})[0]
    assert rank.code == 2 and "blocks.0.up.weight" in rank.text


def test_hyper_parameters_are_not_taken_from_the_file(server: ForkServer, tmp_path: Path) -> None:
    """Trap: gradient clipping and the learning rate come from DeepSpeed's file, not from the configuration."""
    job = {"steps": 1, "zero_stage": 1, "save": str(tmp_path)}
    values(server.run(RUN, job))
    groups = values(server.run("tests.engine.scenarios:groups_after_load", {"load": str(tmp_path)}))[0]
    assert groups["clip"] == 0.25
    assert [(g["lr"], g["weight_decay"], g["betas"]) for g in groups["groups"]] == [
        (0.5, 0.3, [0.8, 0.9]),
        (0.5, 0.0, [0.8, 0.9]),
    ]


@pytest.mark.parametrize("stage", slow_unless([1], [1, 3]))
def test_no_build_no_chatter_no_shared_memory(stage: int, tmp_path: Path) -> None:
    """Traps: a C++ build at every start (hangs for ever when it was killed once); 66 MB per rank left in /dev/shm
    when LOCAL_SIZE is set, as the deepspeed launcher does. A fresh process, with no compiler on its PATH."""
    before = {path.name for path in Path("/dev/shm").glob("deepspeed*")}
    extensions = tmp_path / "extensions"
    code = f"from tests.engine.scenarios import train; train(2, zero_stage={stage})"
    environment = {"PATH": "/nonexistent", "HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(extensions),
                   "LOCAL_SIZE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                   "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""
    assert not list(extensions.glob("**/*.so"))
    assert {path.name for path in Path("/dev/shm").glob("deepspeed*")} <= before


def test_closing_never_aborts(server: ForkServer) -> None:
    """Trap: destroy_process_group without a barrier is SIGABRT in one of four runs."""
    for _ in range(4):
        values(server.run("tests.engine.scenarios:open_and_close", ranks=2))


def test_buffers_stay_float32_in_bf16(server: ForkServer) -> None:
    """Trap: zero.Init computes tables in bf16; here the model itself asserts on every forward."""
    values(server.run(RUN, {"steps": 1, "zero_stage": 3, "dtype": "bf16"}, ranks=2))


def test_frozen_parameters_take_no_optimizer_memory(server: ForkServer) -> None:
    for stage in (0, 1, 3):
        sizes = values(server.run("tests.engine.scenarios:optimizer_elements", {"stage": stage}))[0]
        assert sizes["state"] <= sizes["trained"] + 64


def test_one_rank_missing_is_an_error_not_a_hang(server: ForkServer) -> None:
    environment = {"MASTER_PORT": ""}
    rank = server.run(RUN, {"steps": 1}, ranks=1, environment=environment | {"WORLD_SIZE": "2", "RANK": "5"})[0]
    assert rank.code == 2 and "E-RUN-01" in rank.text


def test_a_model_is_outlined_without_filling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: on the meta device torch imports its compiler to fill an embedding with nothing."""
    fills: list[nn.Module] = []
    monkeypatch.setattr(nn.Embedding, "reset_parameters", lambda self: fills.append(self))
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: fills.append(self))
    with parameters_on_meta():
        assert all(parameter.is_meta for parameter in TinyGPT().parameters())
    with torch.device("meta"), without_initial_values():
        TinyGPT()
    assert not fills
    TinyGPT()
    assert fills
