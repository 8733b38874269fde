"""MFU of a run: the FLOPs that its stage computes, as `plan` counts them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coca_train.planning.cost import Cluster, plan_stage
from coca_train.planning.hardware import GPUS
from coca_train.planning.outline import outline
from coca_train.stages import Stage
from coca_train.testing.parts import shipped
from coca_train.tracking.throughput import flops_per_token
from coca_train.training.stage import announce_engine, meter
from tests.flops import matmul_parameters
from tests.planning.conftest import TINY, coca_llama_7b, configure, planned

ON_CPU: Any = SimpleNamespace(device=torch.device("cpu"))


def metered(stage: Stage, n_tokens: int) -> float:
    return meter(stage, n_tokens, ON_CPU).flops


def test_a_stage_that_trains_a_part_counts_what_it_computes() -> None:
    """The paper's three: all of a step's 6 N D would be 1.42, 1.32 and 1 times that (LLaMA-7B's; four layers)."""
    stages = coca_llama_7b("model.n_layers=4", "model.vocab_size=32000")
    everything = metered(stages[2], 32000)
    for stage, share in zip(stages, (0.70, 0.76, 1.0), strict=True):
        counted = metered(stage, 32000)
        assert counted == plan_stage(stage, outline(stage.config, stage.trainable), A100).per_token.total
        assert counted / everything == pytest.approx(share, abs=0.04)
    model = outline(stages[2].config, ("*",)).model
    assert everything == pytest.approx(flops_per_token(matmul_parameters(model), 4, 4096, 2048), rel=1e-12)


A100 = Cluster(32, GPUS["a100_80gb"])


@pytest.mark.parametrize("scheme", sorted(name for name, _ in shipped()))
def test_every_scheme_has_a_meter(scheme: str) -> None:
    config = configure(*TINY, "model.n_layers=2", f"position={scheme}", "data.order=stream")
    assert metered(planned("all", config, ("*",)), 320) > 0


@pytest.mark.parametrize(("device", "words"), [("cpu", ["engine", "slow"]), ("cuda", ["engine"])])
def test_a_dtype_without_instructions_is_said(device: str, words: list[str], monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("coca_train.training.stage.WIDENED", {torch.bfloat16: True})
    monkeypatch.setattr("coca_train.training.stage.can_compile", lambda device: True)
    announce_engine(configure(*TINY, "engine=deepspeed").engine, torch.device(device))
    printed = "".join(capsys.readouterr())
    assert [line.split()[0] for line in printed.splitlines()] == words
    assert "engine=deepspeed_fp32" in printed or device == "cuda"


def test_float32_is_never_slow(capsys: Any) -> None:
    announce_engine(configure(*TINY, "engine=deepspeed_fp32").engine, torch.device("cpu"))
    assert "slow" not in "".join(capsys.readouterr())
