"""What a finished run gives away and says: folders for transformers, adapters for peft, and what to do next."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file

import coca_train.transformers  # noqa: F401  # so that the Auto classes know our own form
from coca_train.checkpoint.opening import load_run
from coca_train.commands import _training as training_command
from coca_train.hub import exporting
from coca_train.hub.adapters import export_adapters
from coca_train.hub.options import ExportConfig
from coca_train.runtime.errors import UserError
from coca_train.training.run import train
from tests.faults import real
from tests.hub.models import write_family
from tests.stages.support import EXPORTABLE, SIZES, Runs, begin, schedule, stage, tokenizer_of, weights

QV = "trainable: ['blocks.*.attention.[qv].*', 'blocks.*.mlp.down.*'], lora: {rank: 4, alpha: 8}"
FULL, ADAPTED = stage("full", "max_steps: 2"), stage("adapted", f"max_steps: 3, {QV}")


LONGER = (
    "max_steps: 2, train: {seq_len: 48, micro_batch_size: 2}, position: {rope_scaling: {name: linear, factor: 2.0}}"
)


def export(run: Path, to: str, **options: object) -> Path:
    words = {"tokenizer": "none", "parity_tokens": 16} | options
    return exporting.export_run(ExportConfig(run=str(run), to=str(run.parent / to), **words))


def adapters(run: Path, to: str, **options: Any) -> Path:
    return export_adapters(ExportConfig(run=str(run), to=str(run.parent / to), merge=False, **options))


def tune(runs: Runs, name: str, folder: Path, lora: str, *words: str) -> Path:
    """A LoRA stage that takes its model from a folder."""
    small = [word for word in real.TINY if not word.startswith(("model", "train.seq_len", "train.max_steps"))]
    small += ["engine=local", "engine.dtype=fp32", "eval.max_tokens=48", *runs.corpus, f"run.root={runs.folder}"]
    tuning = ["optim.lr=0.01", f"run.name={name}", f"start.path={folder}", *schedule(lora)]
    train(training_command.load([*small, *tuning, *words]))
    return runs.folder / name


def test_an_export_has_the_frequencies_and_the_window_of_its_stage(runs: Runs) -> None:
    run = runs.train("r", *schedule(stage("short", "max_steps: 2"), stage("long", LONGER)), *EXPORTABLE)
    folder = export(run, "hf")
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert exported.config.rope_parameters["rope_type"] == "linear" and exported.config.rope_parameters["factor"] == 2
    assert exported.config.max_position_embeddings == 48
    card = (folder / "README.md").read_text()
    assert "| short | " in card and "| long  | " in card  # what each stage read
    tokens_BT = torch.arange(1, 41)[None]
    with torch.no_grad():
        theirs, ours = exported(input_ids=tokens_BT).logits, load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize("words", [EXPORTABLE, [*EXPORTABLE, "position=coca"]], ids=["native", "own form"])
def test_peft_puts_exported_adapters_on_the_exported_base(runs: Runs, words: list[str]) -> None:
    """A run, then a LoRA stage from it: transformers with the base, peft with the adapters, our merged model."""
    base = export(runs.train("base", *schedule(FULL), *words), "base-hf")
    run = runs.train("tuned", *schedule(ADAPTED), *words, f"start.path={runs.folder}/base")
    folder = adapters(run, "adapters")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    tokens_BT = torch.arange(20)[None]
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    with torch.no_grad():
        before = plain(input_ids=tokens_BT).logits.clone()
        theirs = PeftModel.from_pretrained(plain, str(folder)).eval()(input_ids=tokens_BT).logits
        ours = load_run(run, "cpu").model(tokens_BT)
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert not torch.allclose(before, ours, atol=1e-3)
    assert len(load_file(folder / "adapter_model.safetensors")) == 2 * 2 * 3


@pytest.mark.parametrize(
    ("stages", "words", "why"),
    [
        ([FULL], EXPORTABLE, "its newest checkpoint is not of a stage with lora.rank"),
        (
            [stage("a", "max_steps: 1, trainable: ['*.q.weight', '*norm*'], lora: {rank: 2}")],
            EXPORTABLE,
            r"in full as well",
        ),
    ],
    ids=["no adapters", "norms"],
)
def test_adapters_that_peft_could_not_put_anywhere(runs: Runs, stages: list[str], words: list[str], why: str) -> None:
    run = runs.train("r", *schedule(*stages), *words)
    with pytest.raises(UserError, match=rf"E-IOP-21 .*merge=false: .*{why}.*Fix: merge=true"):
        adapters(run, "out")
    assert weights(run, 2 if why.startswith("its") else 1) and not (runs.folder / "out").exists()


FAMILIES = {
    "llama": {"num_key_value_heads": 1},
    "qwen2": {"num_key_value_heads": 1},  # biases of q, k and v
    "phi3": {"num_key_value_heads": 1},  # q, k and v in one matrix, gate and up in another
    "glm": {"num_key_value_heads": 1, "head_dim": 16},  # rows of q and k in another order
    "gpt_neox": {"tie_word_embeddings": False},  # q, k and v head by head
}


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_peft_finds_the_base_of_adapters(
    runs: Runs, corpus: list[str], family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder that the stage began with, typed as start.path; with logits of the merged export."""
    folder = write_family(runs.folder / family, family, SIZES | {"pad_token_id": 0} | FAMILIES[family])
    shutil.copy(tokenizer_of(corpus), folder / "tokenizer.model")
    patterns = "'blocks.*.attention.[qv].weight', 'blocks.*.mlp.up.weight', 'blocks.1.attention.k.weight'"
    lora = stage("lora", f"max_steps: 3, trainable: [{patterns}], lora: {{rank: 2, alpha: 8}}")
    run = tune(runs, "r", folder, lora)
    assert "adapters alone (export merge=false)" in capsys.readouterr().err
    made = adapters(run, "adapters")
    settings = json.loads((made / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(folder)
    tokens_BT = torch.arange(20)[None]
    with torch.no_grad():
        base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens_BT).logits
        theirs = AutoPeftModelForCausalLM.from_pretrained(made, dtype=torch.float32).eval()(tokens_BT).logits
        merged = transformers.AutoModelForCausalLM.from_pretrained(export(run, "merged")).eval()(tokens_BT).logits
    assert torch.allclose(theirs, merged, atol=1e-5) and not torch.allclose(theirs, base, atol=1e-3)


def test_a_base_that_the_stage_did_not_begin_with_is_not_named(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tune(runs, "scaled", llama, ADAPTED, "position/rope_scaling=linear", "position.rope_scaling.factor=2")
    folder = adapters(run, "adapters")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    assert "rope_scaling" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"^E-IOP-21 .*rope_scaling.*Fix: "):
        adapters(run, "other", base=str(llama))
    run = tune(runs, "r", llama, ADAPTED)
    assert (
        json.loads((adapters(run, "named", base="someone/llama") / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
        == "someone/llama"
    )
    other = shutil.copytree(llama, runs.folder / "other-weights")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"^E-IOP-21 .*norm\.weight.*Fix: "):
        adapters(run, "another", base=str(other))


def test_what_a_lora_stage_trains_in_full_is_said_with_what_would_not(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = stage("a", "max_steps: 3, trainable: ['blocks.*.attention.[qk].weight', '*norm*'], lora: {rank: 2}")
    run = tune(runs, "r", llama, both)
    alone = "trainable=[blocks.*.attention.k.weight,blocks.*.attention.q.weight]"
    logged = capsys.readouterr().err
    assert alone in logged and "blocks.*.attention_norm.weight" in logged
    with pytest.raises(UserError) as refusal:
        adapters(run, "adapters")
    assert alone in str(refusal.value) and "blocks.*.attention_norm.weight" in str(refusal.value)
    pure = stage("a", f"max_steps: 3, {alone.replace('=', ': ')}, lora: {{rank: 2}}")
    assert adapters(tune(runs, "pure", llama, pure), "pure-adapters").is_dir()


def test_summary_of_a_single_run_of_stages_and_of_a_tuned_run(
    runs: Runs, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stage("a", "max_steps: 1"), stage("b", "max_steps: 1")
    runs.train("single")
    single = capsys.readouterr().err
    assert "train.max_steps" in single
    assert "position=coca run.name=coca\n" in single and "coca_train compare schemes=" in single
    runs.train("staged", *schedule(a, b))
    staged = capsys.readouterr().err
    assert "one more stage" in staged and "report/a  " in staged and "report/b  " not in staged
    begin(runs, llama)
    tuned = capsys.readouterr().err
    assert f"evaluate checkpoint={llama}," in tuned
    for err in (staged, tuned):
        assert "run.name=coca" not in err
        assert "python -m coca_train export run=" in err
