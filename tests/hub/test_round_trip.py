"""A model written by transformers, imported, exported, re-imported: the same numbers everywhere, to 1e-5."""

import json

import pytest
import torch
from safetensors.torch import load_file

from coca_train.hub import parity
from coca_train.hub.weights import open_source
from tests.hub import models

# Every kind plain, every scaling on one kind; all pairs in the long run.
CASES = [
    pytest.param(kind, scaling, marks=[] if scaling == "plain" or kind == "llama_gqa" else pytest.mark.slow)
    for kind in models.KINDS
    for scaling in models.SCALINGS
]


@pytest.mark.parametrize(("kind", "scaling"), CASES)
def test_logits_are_those_of_transformers(kind, scaling, model, import_run, export_run):
    folder = model(kind, scaling)
    run = import_run(folder)
    out = export_run(run, form="native")
    again = import_run(out, "again")
    for length in (models.LENGTH, 4 * models.LENGTH):
        expected = models.logits(folder, length)
        assert models.same(models.logits(out, length), expected)
        for run_dir in (run, again):
            with open_source(run_dir) as source:
                ids = torch.randint(models.VOCAB, (1, length), generator=torch.Generator().manual_seed(3))
                probe = parity.Probe("", ids, torch.arange(length)[None], length)
                (ours,) = parity.our_logits(source.architecture, source.read)([probe])
            assert models.same(ours, expected)
    before, after = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    figures = json.loads((out / "parity.json").read_text())
    assert figures["passed"]
    whole = [probe["length"] for probe in figures["probes"] if not probe["probe"].startswith("small copy")]
    assert whole == [models.LENGTH, 4 * models.LENGTH]
    assert all(0 <= probe["relative"] <= 1e-5 < probe["max_abs_logit"] for probe in figures["probes"])


@pytest.mark.parametrize("scaling", models.SCALINGS)
def test_another_scaling_would_be_seen(scaling, model):
    """The check can fail: every scaling of these models moves the logits far beyond the bound."""
    others = [name for name in models.SCALINGS if name != scaling]
    mine = models.logits(model("llama_gqa", scaling), 4 * models.LENGTH)
    for other in others:
        theirs = models.logits(model("llama_gqa", other), 4 * models.LENGTH)
        assert (mine - theirs).abs().max() > 1e-3 * mine.abs().max()


def test_plain_mistral_without_a_window(tmp_path, import_run, export_run):
    folder = models.write(tmp_path / "m", "mistral", sliding_window=None)
    out = export_run(import_run(folder))
    assert json.loads((out / "config.json").read_text())["model_type"] == "mistral"  # as it came
    assert models.same(models.logits(out, 60), models.logits(folder, 60))


def test_biased_llama_and_sequential_neox(tmp_path, import_run, export_run):
    folder = models.write(tmp_path / "l", "llama", attention_bias=True, mlp_bias=True)
    assert models.same(models.logits(export_run(import_run(folder)), 60), models.logits(folder, 60))
    folder = models.write(tmp_path / "n", "gpt_neox", use_parallel_residual=False, hidden_act="gelu_new")
    out = export_run(import_run(folder, "n"), "n-out")
    assert models.same(models.logits(out, 60), models.logits(folder, 60))


def test_tied_embeddings(tmp_path, import_run, export_run):
    folder = models.write(tmp_path / "t", "llama_gqa", tie_word_embeddings=True)
    run = import_run(folder)
    out = export_run(run)
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    assert models.same(models.logits(out, 60), models.logits(folder, 60))
    with open_source(run) as source:
        assert "head.weight" not in source.names


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_precision_is_kept(dtype, name, tmp_path, import_run, export_run):
    folder = models.write(tmp_path / "h", "llama_gqa", dtype=dtype)
    run = import_run(folder)
    (shard,) = run.glob("checkpoints/step-00000000/*.safetensors")
    assert {tensor.dtype for tensor in load_file(shard).values()} == {dtype}
    assert f"dtype: {name}" in (run / "config.yaml").read_text()
    before, after = load_file(folder / "model.safetensors"), load_file(export_run(run) / "model.safetensors")
    assert all(torch.equal(before[key], after[key]) and after[key].dtype == dtype for key in before)
    wide = export_run(run, "wide", dtype="fp32")
    assert all(
        torch.equal(before[key].float(), tensor) for key, tensor in load_file(wide / "model.safetensors").items()
    )


def test_a_scaling_with_lists(tmp_path, import_run, export_run):
    """LongRoPE, as Phi-3 has it: a factor for every pair."""
    rope = {"rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 16, "factor": 4.0}
    rope |= {"short_factor": [1.0 + j / 8 for j in range(6)], "long_factor": [1.0 + j for j in range(6)]}
    folder = models.write(tmp_path / "l", "llama_gqa", rope_parameters=rope)
    out = export_run(import_run(folder), form="native")
    assert json.loads((out / "config.json").read_text())["rope_scaling"]["long_factor"] == rope["long_factor"]
    for length in (models.LENGTH, 12):
        assert models.same(models.logits(out, length), models.logits(folder, length))


def test_older_words_for_a_scaling_mean_the_same(copy, model, import_run):
    """rope_scaling and rope_theta beside it, `type` for rope_type: how released models have it."""
    folder = copy("llama_gqa", "linear")
    models.edit(folder, rope_parameters=..., rope_theta=500.0, rope_scaling={"type": "linear", "factor": 4.0})
    with open_source(folder) as source, open_source(model("llama_gqa", "linear")) as same:
        assert source.architecture == same.architecture
    import_run(folder)


def test_a_run_that_was_exported_in_halves(model, import_run, export_run):
    """dtype=bf16: parity is between the same weights, so it holds at 1e-5, and the loss of digits is only theirs."""
    folder = model("llama_gqa")
    out = export_run(import_run(folder), dtype="bf16")
    exact, rounded = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(exact[key].bfloat16(), rounded[key]) for key in exact)
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
