"""`+experiment=coca_from_hf`: CoCA with YaRN into a model of any family, in three stages, and out again."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coca_train.checkpoint.opening import load_run
from coca_train.commands._training import load
from coca_train.hub import exporting
from coca_train.hub.options import ExportConfig
from coca_train.models.generation import generate
from tests.cases import slow_unless
from tests.faults import real
from tests.hub.models import write_family
from tests.stages.support import SIZES, Runs, manifest, saved, weights

WIDE: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 16}
WINDOWS: dict[str, Any] = {"num_hidden_layers": 4, "sliding_window": 9}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1},
    "qwen2": {"num_key_value_heads": 1},  # biases of queries, keys and values
    "qwen3": WIDE,  # norms of each head
    "olmo2": {"num_key_value_heads": 1},  # norms of all heads, and of outputs
    "gemma2": WIDE | WINDOWS,  # scores that are capped, windows in every second layer
    "gemma3_text": WIDE | WINDOWS | {"sliding_window_pattern": 2},  # two sets of frequencies
    "smollm3": {"num_key_value_heads": 1, "num_hidden_layers": 4},  # a layer without positions
    "cohere2": {"num_key_value_heads": 1} | WINDOWS,  # the same, one norm for both branches
    "phi3": {"num_key_value_heads": 1},
    "glm": WIDE,  # half of each head is rotated
    "gpt_neox": {"hidden_size": 64},  # a quarter
    "stablelm": {"hidden_size": 64, "num_key_value_heads": 1},
}
QUICK = ["qwen2", "gemma3_text", "glm"]
SMALL = [word for word in real.TINY if not word.startswith(("model.", "train.max_steps", "optim."))]
YARN = ["position/rope_scaling=yarn", "position.rope_scaling.factor=2"]


@pytest.fixture
def folder(tmp_path: Path, corpus: list[str], request: pytest.FixtureRequest) -> Path:
    """A small model of a family, with the tokenizer of the corpus."""
    path = write_family(tmp_path / "hf", request.param, SIZES | {"pad_token_id": 0} | FAMILIES[request.param])
    tokenizer = next(word for word in corpus if word.startswith("data.tokenizer=")).partition("=")[2]
    shutil.copy(tokenizer, path / "tokenizer.model")
    return path


def launch(runs: Runs, folder: Path, name: str, *more: str, crash_at: int | None = None) -> Path:
    own = [f"start.path={folder}", f"run.root={runs.folder}", f"run.name={name}", "engine=local", "engine.dtype=fp32"]
    lengths = ["train.max_steps=2", "optim.warmup_steps=1", "checkpoint.save_every_steps=1", "checkpoint.keep=9"]
    words = ["+experiment=coca_from_hf", *SMALL, *runs.corpus, *own, *lengths, "start.parity_tokens=48", *YARN, *more]
    return runs.launch(load(words), crash_at)


@pytest.mark.parametrize("folder", slow_unless(QUICK, FAMILIES), indirect=True)
def test_three_stages_and_out_again(runs: Runs, folder: Path) -> None:
    """Killed in the second stage and resumed it is the same to the bit; its export decodes greedily as the run does."""
    whole, killed = launch(runs, folder, "whole"), launch(runs, folder, "killed", crash_at=4)
    assert max(saved(killed)) < 4
    launch(runs, folder, "killed")
    assert weights(whole, 6) == weights(killed, 6) != weights(whole, 4)

    to = str(runs.folder / "out")
    out = exporting.export_run(ExportConfig(run=str(whole), to=to, tokenizer="none", parity_tokens=48))
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True, dtype=torch.float32).eval()
    assert model.config.model_type == "coca"
    prompt = list(range(3, 20))
    theirs = model.generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert theirs[0, len(prompt) :].tolist() == generate(load_run(whole).model, prompt, 24)


@pytest.mark.parametrize("folder", slow_unless(["qwen2"], ["qwen2", "gemma2", "phi3", "glm"]), indirect=True)
def test_adapters_in_the_second_stage(runs: Runs, folder: Path) -> None:
    run = launch(runs, folder, "lora", "stages=coca_three_lora")
    assert manifest(run, 4)["lora"]["rank"] == 8 and saved(run)[-1] == 6
