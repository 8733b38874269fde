"""What the shipped configurations say, and that a loaded one is frozen, complete and readable again."""

import os
from dataclasses import FrozenInstanceError, asdict, is_dataclass, replace
from functools import partial
from typing import Any

import pytest
import yaml

from coca_train.config.fields import fields_of
from coca_train.config.files import choices, config_dir
from coca_train.config.messages import ConfigError, is_secret
from coca_train.config.schema import Config
from coca_train.runtime.trees import leaves, section
from coca_train.settings import load, load_saved
from coca_train.stages import resolve
from coca_train.vary import vary
from tests.cases import experiments
from tests.config.support import has, refused, table

RECIPES = ("roformer_350m", "alibi_350m", "coca_350m", "coca_strict_350m")
DIRS = (config_dir(),)
# What some choices need beside them.
MOVING = [f"attention_pattern={name}" for name in ("sinks", "self_extend", "dual_chunk", "string")]
NEEDED = {
    "position=transformer_xl": ["data.order=stream"],
    "attention_pattern=bidirectional": ["data.objective.name=masked_token"],
    **{key: ["position=rope"] for key in MOVING},
}


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_loads_and_is_frozen(name, monkeypatch):
    # As many processes as share a sequence.
    n_ranks = load([f"+experiment={name}"], launch=False).config.engine.sequence_parallel
    for variable, value in (("WORLD_SIZE", n_ranks), ("RANK", 0), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(variable, str(value))
    loaded = load([f"+experiment={name}"])
    assert loaded.config.run.name == name
    with pytest.raises(FrozenInstanceError):
        loaded.config.train.max_steps = 1  # pyright: ignore


@pytest.mark.parametrize(
    "choice",
    [
        f"{group}={name}"
        for group in ("model", "position", "attention_pattern", "data", "engine", "tracking", "eval")
        for name in choices(group, DIRS)
        # For evaluation only (test_attention_patterns_that_cannot_be_trained); for weights that are there
        # (tests/stages).
        if name not in ("segments", "from_start")
    ]
    + [f"position/rope_scaling={name}" for name in choices("position/rope_scaling", DIRS)],
)
def test_every_choice_loads(choice):
    if choice == "tracking=wandb":
        pytest.importorskip("wandb", reason="an extra: without it this choice is refused, see below")
    load([choice, *NEEDED.get(choice, [])])


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("coca_train.config.check.find_spec", lambda name: None)
    for name in ("wandb", "tensorboard"):
        has(refused([f"tracking={name}"]), "E-CFG-37", [f"pip install {name}"])


def test_quickstart_is_the_default():
    assert load([]).config == load(["+experiment=quickstart"]).config == load(["experiment=quickstart"]).config


def test_recipes_differ_in_the_position_and_the_name_only():
    configs = [load([f"+experiment={name}"]).config for name in RECIPES]
    rope, alibi, coca, strict = (config.position for config in configs)
    assert (rope.scheme, alibi.scheme, coca.scheme, strict.scheme) == ("rope", "alibi", "coca", "coca")
    assert (coca.variant, strict.variant) == ("slack", "strict")
    assert replace(coca, variant="strict") == strict
    assert rope.rope_scaling == coca.rope_scaling == strict.rope_scaling
    first = configs[0]
    for config in configs[1:]:
        assert replace(config, position=first.position, run=replace(config.run, name=first.run.name)) == first


def test_recipe_values():
    """The CoCA paper, 4.2 and 4.3, by hand."""
    config = load(["+experiment=coca_350m"]).config
    model, optim, train = config.model, config.optim, config.train
    assert (model.n_layers, model.d_model, model.n_heads, model.d_ff, model.vocab_size) == (24, 1024, 16, 4096, 100_864)
    assert (model.norm, model.activation, model.residual) == ("layernorm", "gelu", "parallel")
    assert (model.bias, model.tie_embeddings, model.init_std) == (["qkv", "out", "mlp", "norm"], False, 0.02)
    assert (train.seq_len, train.micro_batch_size, train.global_batch_size, train.max_steps) == (512, 16, 256, 763_000)
    assert (optim.lr, optim.min_lr, optim.schedule, optim.warmup_init_lr) == (1e-4, 1e-5, "linear", 1e-7)
    assert (optim.warmup_steps, optim.betas, optim.weight_decay, optim.max_grad_norm) == (7_630, (0.9, 0.95), 0.0, 1.0)
    assert (config.engine.dtype, config.engine.zero_stage) == ("bf16", 2)
    weights = {name: source.weight for name, source in config.data.sources.items()}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights.pop("github_code") == 0.25
    assert set(weights) == {"pile", "bookcorpus", "wikipedia"}


def test_overrides_of_every_form():
    words = ["experiment=coca_350m", "position=rope", "position/rope_scaling=yarn", "position.rope_scaling.factor=8"]
    words += ["optim.betas=[0.8,0.9]", "train={max_steps: 100000, seq_len: 64}", "model.n_kv_heads=4"]
    words += ["+data.sources.mine={path: a, valid_path: null, weight: 1, on_exhausted: stop}"]
    words += ["~data.sources.wikipedia", "eval.sample_prompt='Once upon, a time'", "++run.seed=7"]
    config = load(words).config
    assert (config.position.rope_scaling.name, config.position.rope_scaling.factor) == ("yarn", 8.0)
    assert config.position.rope_scaling.original_seq_len == 64  # follows train.seq_len
    assert (config.optim.betas, config.train.max_steps, config.run.seed) == ((0.8, 0.9), 100_000, 7)
    assert list(config.data.sources) == ["pile", "bookcorpus", "github_code", "mine"]
    assert config.eval.sample_prompt == "Once upon, a time"


@pytest.mark.parametrize(
    "words",
    [
        ["+experiment=coca_350m", "position/rope_scaling=yarn", "optim.lr=3e-4"],
        ["position=rope", "attention_pattern=rerope", "attention_pattern.window=48"],
        ["position=rope", "position.rope_scaling.theta=500000.0", "layers=gemma3"],
        ["position=rope", "+stages.two={max_steps: 60, train: {seq_len: 512}}",
         "+stages.two.position.rope_scaling={name: linear, factor: 8}"],
    ],
)  # fmt: skip
def test_a_saved_run_reads_back(tmp_path, words):
    loaded = load(words)
    (tmp_path / "config.yaml").write_text(loaded.record)
    saved = load_saved(tmp_path)
    assert (saved.config, saved.yaml) == (loaded.config, loaded.yaml)
    assert resolve(saved.config) == resolve(loaded.config)


@pytest.mark.parametrize("group", ["model", "optim", "engine", "tracking", "eval", "data"])
def test_a_choice_says_only_what_differs_from_the_schema(group):
    """Every default stands in one place."""
    defaults: dict[str, Any] = {}
    kind = fields_of(Config)[group].annotation
    for name, field in fields_of(kind).items():
        default = field.get_default(call_default_factory=True)
        defaults[name] = asdict(default) if is_dataclass(default) else default
    for path in choices(group, (config_dir(),)).values():
        for key, value in leaves(yaml.safe_load(path.read_text()) or {}):
            *above, name = key.split(".")
            assert section(defaults, above[0]).get(name, ...) != value if above else defaults.get(name) != value, path


def test_packings_that_go_together():
    load(["data=pg19_64k", "train.seq_len=65536"])
    load(["data.packing=documents", "data.document_mask=true"])
    load(["data.packing=segments", "data.document_mask=true", "data.upsample_from_tokens=9", "data.upsample_factor=5"])


def test_a_tampered_saved_run_is_refused(tmp_path):
    tree = yaml.safe_load(load([]).record)
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


def test_the_attention_pattern_of_a_run():
    assert load([]).config.attention_pattern.name == "causal"
    config = load(["position=rope", "attention_pattern=sinks", "attention_pattern.n_sink=2", "train.seq_len=64"]).config
    assert (config.attention_pattern.name, config.attention_pattern.n_sink, config.attention_pattern.window) == (
        "sinks",
        2,
        64,
    )
    with pytest.raises(FrozenInstanceError):
        config.attention_pattern.n_sink = 1  # pyright: ignore
    choice = load(
        [
            "position=coca_strict",
            "attention_pattern=lambda_mask",
            "attention_pattern.max_distance=${train.micro_batch_size}",
        ]
    )
    assert choice.config.attention_pattern.max_distance == choice.config.train.micro_batch_size
    assert choice.config.attention_pattern.name == "lambda_mask"


@pytest.fixture
def trained():
    """The configuration of weights that were trained with rope, base 500 000, in a window of 64."""
    return load(["position=rope", "position.rope_scaling.theta=500000", "train.seq_len=64"]).config


def test_vary_changes_what_it_is_told_and_nothing_else(trained):
    words = [
        "attention_pattern=sinks",
        "attention_pattern.window=32",
        "position/rope_scaling=yarn",
        "position.rope_scaling.factor=8",
    ]
    varied = vary(trained, words)
    assert (varied.attention_pattern.name, varied.attention_pattern.n_sink, varied.attention_pattern.window) == (
        "sinks",
        4,
        32,
    )
    rope_scaling = varied.position.rope_scaling
    assert (rope_scaling.name, rope_scaling.factor, rope_scaling.original_seq_len) == ("yarn", 8, 64)
    assert rope_scaling.theta == 500_000
    assert replace(varied, position=trained.position, attention_pattern=trained.attention_pattern) == trained
    assert vary(trained, []) == trained


def test_vary_reads_what_is_for_evaluation_only(trained):
    assert vary(trained, ["attention_pattern=segments"]).attention_pattern.length == 64


@table("""
attention_pattern=sink | E-CFG-32 | command line attention_pattern=sink: | write attention_pattern=sinks
attention_pattern=sinks attention_pattern.window=0 | E-CFG-05 | command line attention_pattern.window=0: | > 0
attention_pattern.n_sink=4 | E-CFG-01 | command line attention_pattern.n_sink=4: | choose attention_pattern=sinks
attention_pattern=sinks,rerope | E-CFG-16 | command line attention_pattern=sinks,rerope
position=alibi | E-CFG-16 | command line position=alibi:
position.rotary_pct=0.5 | E-CFG-16 | command line position.rotary_pct=0.5:
position/rope_scaling=clex | E-CFG-33 | command line position/rope_scaling: | parameters of its own
""")
def test_vary_refuses_in_one_line(trained, words, code, texts):
    lines = refused(words, load=partial(vary, trained))
    assert len(lines) == 1
    has(lines, code, texts)


@table("""
position=learned attention_pattern=rerope | E-CFG-44
  | configs/attention_pattern/rerope.yaml:2 attention_pattern.name=rerope
position=coca attention_pattern=sinks | E-CFG-44 | configs/attention_pattern/sinks.yaml:2 attention_pattern.name=sinks
position=alibi position/rope_scaling=yarn | E-CFG-33 | command line position/rope_scaling=yarn
""")
def test_vary_refuses_pairs_that_make_no_sense(words, code, texts):
    has(refused(words[1:], load=partial(vary, load(words[:1]).config)), code, texts)


def test_a_file_that_changes_is_read_again(tmp_path):
    """What Hydra merged is kept between loads, as long as no file changes, comes or goes."""
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    words = ["+experiment=mine"]
    for steps in (11, 12):
        mine.write_text(f"# @package _global_\n# Mine\ntrain:\n  max_steps: {steps}\noptim:\n  warmup_steps: 1\n")
        assert load(words, (tmp_path,)).config.train.max_steps == steps
        assert load([*words, "train.max_steps=13"], (tmp_path,)).config.train.max_steps == 13
    mine.unlink()
    with pytest.raises(ConfigError, match=r"E-CFG-32 .*experiment=mine"):
        load(words, (tmp_path,))


def test_a_commit_in_a_path_is_no_secret():
    """As the folders of Hugging Face's cache have; alone it may be a key of W&B's."""
    digits = "0123456789abcdef0123456789abcdef01234567"
    assert is_secret("a", digits) and not is_secret("start.path", f"hub/models--a--b/snapshots/{digits}")
