"""What the shipped configurations say, and that a loaded one is frozen, complete and readable again."""

import os
from dataclasses import FrozenInstanceError, replace

import pytest
import yaml

from coca_train.config.files import choices, config_dir
from coca_train.config.load import frequency_variants, load, load_saved
from coca_train.config.messages import ConfigError

RECIPES = ("roformer_350m", "alibi_350m", "coca_350m", "coca_strict_350m")
DIRS = (config_dir(),)


@pytest.mark.parametrize("name", choices("experiment", DIRS))
def test_every_experiment_loads_and_is_frozen(name):
    loaded = load([f"+experiment={name}"])
    assert loaded.config.run.name == name
    assert loaded.choices["experiment"] == name
    with pytest.raises(FrozenInstanceError):
        loaded.config.train.max_steps = 1  # pyright: ignore


@pytest.mark.parametrize(
    "choice",
    [
        f"{group}={name}"
        for group in ("model", "position", "data", "engine", "tracking", "eval")
        for name in choices(group, DIRS)
    ]
    + [f"position/frequencies={name}" for name in choices("position/frequencies", DIRS)],
)
def test_every_choice_loads(choice):
    if choice == "tracking=wandb":
        pytest.importorskip("wandb", reason="an extra: without it this choice is refused, see below")
    load([choice])


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("coca_train.config.check.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"E-CFG-37 .*wandb is not installed.*pip install wandb"):
        load(["tracking=wandb"])


def test_quickstart_is_the_default():
    assert load([]).config == load(["+experiment=quickstart"]).config == load(["experiment=quickstart"]).config


def test_recipes_differ_in_the_position_and_the_name_only():
    configs = [load([f"+experiment={name}"]).config for name in RECIPES]
    rope, alibi, coca, strict = (config.position for config in configs)
    assert (rope.scheme, alibi.scheme, coca.scheme, strict.scheme) == ("rope", "alibi", "coca", "coca")
    assert (coca.variant, strict.variant) == ("slack", "strict")
    assert replace(coca, variant="strict") == strict
    assert rope.frequencies == coca.frequencies == strict.frequencies
    first = configs[0]
    for config in configs[1:]:
        assert replace(config, position=first.position, run=replace(config.run, name=first.run.name)) == first


def test_recipe_values():
    """The CoCA paper, 4.2 and 4.3, by hand."""
    config = load(["+experiment=coca_350m"]).config
    model, optim, train = config.model, config.optim, config.train
    assert (model.n_layers, model.d_model, model.n_heads, model.d_ff, model.vocab_size) == (24, 1024, 16, 4096, 100_864)
    assert (model.norm, model.activation, model.residual) == ("layernorm", "gelu", "parallel")
    assert (model.bias, model.tie_embeddings, model.init_std) == (True, False, 0.02)
    assert (train.seq_len, train.micro_batch_size, train.global_batch_size, train.max_steps) == (512, 16, 256, 763_000)
    assert (optim.lr, optim.min_lr, optim.schedule, optim.warmup_init_lr) == (1e-4, 1e-5, "linear", 1e-7)
    assert (optim.warmup_steps, optim.betas, optim.weight_decay, optim.max_grad_norm) == (7_630, (0.9, 0.95), 0.0, 1.0)
    assert (config.engine.dtype, config.engine.zero_stage) == ("bf16", 1)
    weights = {name: source.weight for name, source in config.data.sources.items()}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights.pop("github_code") == 0.25
    assert set(weights) == {"pile", "bookcorpus", "wikipedia"}


def test_overrides_of_every_form():
    config = load(
        [
            "experiment=coca_350m",
            "position=rope",
            "position/frequencies=yarn",
            "position.frequencies.factor=8",
            "optim.betas=[0.8,0.9]",
            "train={max_steps: 100000, seq_len: 64}",
            "model.n_kv_heads=4",
            "~data.sources.wikipedia",
            "+data.sources.mine={path: a, valid_path: null, weight: 1, on_exhausted: stop}",
            "eval.sample_prompt='Once upon, a time'",
            "++run.seed=7",
        ]
    ).config
    assert (config.position.frequencies.name, config.position.frequencies.factor) == ("yarn", 8.0)
    assert config.position.frequencies.original_seq_len == 64  # follows train.seq_len
    assert config.optim.betas == (0.8, 0.9)
    assert config.train.max_steps == 100_000
    assert list(config.data.sources) == ["pile", "bookcorpus", "github_code", "mine"]
    assert config.eval.sample_prompt == "Once upon, a time"
    assert config.run.seed == 7


def test_a_saved_run_reads_back(tmp_path):
    loaded = load(["+experiment=coca_350m", "position/frequencies=yarn", "optim.lr=3e-4"])
    (tmp_path / "config.yaml").write_text(loaded.yaml)
    saved = load_saved(tmp_path)
    assert saved.config == loaded.config
    assert saved.yaml == loaded.yaml


def test_a_tampered_saved_run_is_refused(tmp_path):
    tree = yaml.safe_load(load([]).yaml)
    tree["optim"]["lr"] = "fast"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"config\.yaml:\d+ optim\.lr=fast"):
        load_saved(tmp_path)
    with pytest.raises(ConfigError, match="E-CFG-15"):
        load_saved(tmp_path / "nothing")


def test_data_folder_from_the_environment(monkeypatch):
    assert load([]).config.data.tokenizer == "data/embedded/tokenizer.model"
    monkeypatch.setenv("COCA_TRAIN_DATA", "/elsewhere")
    assert load([]).config.data.sources["code"].valid_path == "/elsewhere/embedded/code_valid"


def test_own_folder_of_configs(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "two_layers.yaml").write_text(
        (config_dir() / "model" / "neox_tiny.yaml").read_text().replace("6", "2", 1)
    )
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: two_layers\nrun:\n  name: mine\n"
    )
    config = load(["+experiment=mine"], (tmp_path,)).config
    assert (config.run.name, config.model.n_layers) == ("mine", 2)


def test_from_another_folder(tmp_path, monkeypatch):
    here = load([]).yaml
    monkeypatch.chdir(tmp_path)
    assert load([]).yaml == here
    assert os.listdir(tmp_path) == []


def test_frequency_variants_keep_the_trained_base():
    config = load(["position=rope", "position.frequencies.theta=500000", "train.seq_len=64"]).config
    plain, dynamic = frequency_variants(config).values()
    assert plain == config.position
    assert (dynamic.frequencies.name, dynamic.frequencies.theta, dynamic.frequencies.original_seq_len) == (
        "dynamic_ntk",
        500_000,
        64,
    )
    assert frequency_variants(load(["position=alibi"]).config) == {"plain": load(["position=alibi"]).config.position}
