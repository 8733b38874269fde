"""`+experiment=drope_from_hf`, `swan_from_hf`: a trained model loses RoPE in all layers, or in some, and trains on."""

import shutil
from pathlib import Path

import pytest

from coca_train.checkpoint.opening import load_run
from coca_train.commands._training import load
from tests.faults import real
from tests.hub.models import write_family
from tests.stages.support import SIZES, Runs, saved, weights

SMALL = [word for word in real.TINY if not word.startswith(("model.", "train.max_steps", "optim."))]


@pytest.fixture
def folder(tmp_path: Path, corpus: list[str]) -> Path:
    path = write_family(tmp_path / "hf", "llama", SIZES | {"pad_token_id": 0, "num_hidden_layers": 4})
    tokenizer = next(word for word in corpus if word.startswith("data.tokenizer=")).partition("=")[2]
    shutil.copy(tokenizer, path / "tokenizer.model")
    return path


def launch(runs: Runs, folder: Path, experiment: str, name: str, *more: str, crash_at: int | None = None) -> Path:
    own = [f"start.path={folder}", f"run.root={runs.folder}", f"run.name={name}", "engine=local", "engine.dtype=fp32"]
    lengths = ["train.max_steps=4", "optim.warmup_steps=1", "checkpoint.save_every_steps=1", "checkpoint.keep=9"]
    words = [f"+experiment={experiment}", *SMALL, *runs.corpus, *own, *lengths, "start.parity_tokens=48", *more]
    return runs.launch(load(words), crash_at)


@pytest.mark.parametrize("experiment", ["drope_from_hf", "swan_from_hf"])
def test_it_trains_on_and_a_killed_run_is_the_same(runs: Runs, folder: Path, experiment: str) -> None:
    whole = launch(runs, folder, experiment, "whole")
    killed = launch(runs, folder, experiment, "killed", crash_at=3)
    assert max(saved(killed)) < 3
    launch(runs, folder, experiment, "killed")
    assert weights(whole, 4) == weights(killed, 4) != weights(whole, 1)


def test_drope_has_no_positions_and_grows_its_scores_beyond_the_window(runs: Runs, folder: Path) -> None:
    model = load_run(launch(runs, folder, "drope_from_hf", "run")).model
    assert {model.position_of(kind).settings.scheme for kind in model.layer_types} == {"nope"}
    assert (model.config.logit_scale.name, model.config.logit_scale.beta) == ("by_length", 0.103)


def test_swan_keeps_rope_where_windows_are_short(runs: Runs, folder: Path) -> None:
    model = load_run(launch(runs, folder, "swan_from_hf", "run")).model
    seen = [
        (model.position_of(kind).settings.scheme, model.attention_patterns[kind].settings.name)
        for kind in model.layer_types
    ]
    assert seen == [("nope", "causal"), *[("rope", "sliding_window")] * 3]


def test_an_experiment_of_ones_own_keeps_what_it_says(runs: Runs, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "# @package _global_\n# Mine\ndefaults:\n  - _fine_tuning\n  - override /model: from_start\n"
        "start: {convert: [rope_to_nope]}\nmodel:\n  bias: [out]\n  logit_scale: {name: log}\n"
        "layers: {pattern: [nope, default], types: {nope: {position: {scheme: nope}}}}\ntrain: {seq_len: 20}\n"
    )
    words = ["+experiment=mine", *runs.corpus, f"start.path={folder}", f"run.root={runs.folder}", "run.name=mine"]
    config = load(words, (own.parents[1],)).config
    assert (config.model.bias, config.model.logit_scale.name) == (["out"], "log")
    assert config.layers.pattern == ["nope", "default"] and config.train.seq_len == 20
    assert config.model.d_model == SIZES["hidden_size"]
