"""The real command over 30 steps: every engine, world size and accumulation gives the same losses."""

import json
from pathlib import Path

import pytest

from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer

# (settings, processes); the global batch is 8 sequences throughout
LAYOUTS = {
    "local, accumulation 4": (["engine=local"], 1),
    "local, accumulation 1": (["engine=local", "train.micro_batch_size=8"], 1),
    "ZeRO 0": (["engine.zero_stage=0"], 1),
    "ZeRO 1": (["engine.zero_stage=1"], 1),
    "ZeRO 1, accumulation 1": (["engine.zero_stage=1", "train.micro_batch_size=8"], 1),
    "ZeRO 2": (["engine.zero_stage=2"], 1),
    "ZeRO 3": (["engine.zero_stage=3"], 1),
    "ZeRO 0, 2 processes": (["engine.zero_stage=0"], 2),
    "ZeRO 1, 2 processes": (["engine.zero_stage=1"], 2),
    "ZeRO 2, 2 processes": (["engine.zero_stage=2"], 2),
    "ZeRO 3, 2 processes": (["engine.zero_stage=3"], 2),
    "ZeRO 3, 2 processes, activation checkpointing": (
        ["engine.zero_stage=3", "engine.activation_checkpointing=full"],
        2,
    ),
    "ZeRO 3, 2 processes, accumulation 1": (["engine.zero_stage=3", "train.micro_batch_size=4"], 2),
}
LLAMA = ["model=llama_tiny", "model.n_kv_heads=1", "model.tie_embeddings=true", "position=rope"]
MODELS = {"neox coca": [], "llama rope": LLAMA, "neox coca, muon": ["optim=muon", "engine.gradient_reduction=owner"]}


def losses(server: ForkServer, folder: Path, name: str, settings: list[str], ranks: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each of 30 steps."""
    (folder / "data").mkdir(exist_ok=True)
    data = real.prepare(folder / "data")
    command = [*settings[:1], *real.TINY, *data, f"run.root={folder}", f"run.name={name}", *settings[1:]]
    command = [*command, "train.max_steps=30", "train.global_batch_size=8", "checkpoint.save_every_steps=30"]
    command = [word for word in command if not word.startswith("eval.every")] + ["eval.every_steps=30"]
    ended = server.run("tests.faults.real:run", {"overrides": command}, ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended[0].text
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


@pytest.mark.parametrize("dtype", slow_unless([], ["fp32", "bf16"]))
@pytest.mark.parametrize("model", list(MODELS))
def test_all_layouts_agree(server: ForkServer, tmp_path: Path, model: str, dtype: str) -> None:
    """float32: 1e-5 relative. bf16: 5e-4 (rounding points differ with the micro batch)."""
    expected, worst = None, 0.0
    for number, (name, (settings, ranks)) in enumerate(LAYOUTS.items()):
        if dtype == "bf16" and "engine.zero_stage=0" in settings:
            continue
        got = losses(server, tmp_path, f"r{number}", [*settings, *MODELS[model], f"engine.dtype={dtype}"], ranks)
        assert len(got) == 30
        expected = expected or got
        gap = max(abs(a - b) / b for (a, _), (b, _) in zip(got, expected, strict=True))
        norms = max(abs(a - b) / b for (_, a), (_, b) in zip(got, expected, strict=True))
        print(f"{model} {dtype} | {name:46} | loss {gap:.1e} | gradient norm {norms:.1e}")
        worst = max(worst, gap)
    assert worst < (1e-5 if dtype == "fp32" else 5e-4)
