"""A typed choice replaces its whole section, whatever an experiment sets there, and a note names what it replaces."""

from functools import partial, reduce
from operator import getitem

import pytest

from coca_train.commands import _sweep, main
from coca_train.config.files import choices, config_dir
from coca_train.config.load import assemble
from coca_train.config.load import load as finish
from coca_train.config.messages import ConfigError
from coca_train.settings import TRAIN, load
from tests.cases import experiments, sampled
from tests.config.support import has, refused

EXPERIMENTS = experiments()
GROUPS = ("model", "position", "optim", "data", "engine", "stages", "attention_pattern", "layers", "eval", "tracking")
WORDS = [f"{group}={name}" for group in GROUPS for name in choices(group, (config_dir(),)) if name != "from_start"]
ROPE_SCALINGS = [f"position/rope_scaling={name}" for name in choices("position/rope_scaling", (config_dir(),))]


def section(word, words):
    """What a configuration has of the section of a typed choice."""
    a = assemble(TRAIN, words)
    assert not a.problems, a.lines()
    return reduce(getitem, word.partition("=")[0].split("/"), a.tree)


@pytest.mark.parametrize(("experiment", "word"), sampled(EXPERIMENTS, WORDS))
def test_over_every_experiment_a_choice_is_what_it_is_alone(experiment, word):
    words = [f"+experiment={experiment}", word]
    assert section(word, words) == section(word, words[::-1]) == section(word, [word])
    for line in problems(words):  # it names the word, and the line of a file that the word does not go with
        assert f"command line {word}" in line and ".yaml:" in line, line


def problems(words):
    try:
        finish(assemble(TRAIN, words), launch=False)
    except ConfigError as error:
        return error.lines
    return []


@pytest.mark.parametrize(("experiment", "word"), sampled(("pi_llama_7b_32k", "yarn_llama2_tiny_128k"), ROPE_SCALINGS))
def test_frequencies_are_what_they_are_alone(experiment, word):
    """Beside them stands what the experiment says of its position."""
    assert section(word, [f"+experiment={experiment}", word]) == section(word, ["position=rope", word])
    own = load([f"+experiment={experiment}"], launch=False).config.position
    typed = load([f"+experiment={experiment}", word], launch=False).config.position
    assert (
        typed.rotary_pct == own.rotary_pct and typed.rope_scaling.name != "" and typed.rope_scaling != own.rope_scaling
    )


def test_single_values_win_over_everything(tmp_path):
    words = ["model.n_layers=2", "+experiment=sketch", "model=llama2_7b", "model.n_heads=16"]
    model = load(words).config.model
    assert (model.n_layers, model.n_heads, model.d_model) == (2, 16, 4096)
    assert load(["+experiment=sketch", "model={n_layers: 2}"]).config.model.d_model == 128  # values, and no choice


def test_what_an_experiment_says_of_other_sections_stays():
    whole, typed = (
        load(["+experiment=yarn_llama2_7b_128k", *more], launch=False).config for more in ([], ["optim=adamw"])
    )
    assert typed.stages == whole.stages and typed.position == whole.position and typed.train == whole.train
    assert list(load(["+experiment=yarn_llama2_7b_128k", "stages=single"], launch=False).config.stages) == ["all"]


def test_a_scheme_without_frequencies_over_an_experiment_that_chooses_some():
    loaded = load(["+experiment=yarn_llama2_7b_64k", "position=alibi"], launch=False)
    assert loaded.config.position.scheme == "alibi"
    (note,) = loaded.notes
    assert all(text in note for text in ("position=alibi", "position/rope_scaling=yarn", "yarn_llama2_7b_64k.yaml"))
    (note,) = load(["+experiment=yarn_llama2_7b_64k", "position/rope_scaling=linear"], launch=False).notes
    assert "position.rope_scaling.factor=16.0" in note and "position/rope_scaling=yarn" not in note


def test_what_does_not_apply_is_told_once(capsys, tmp_path):
    words = ["+experiment=sketch", "model=llama2_7b"]
    for command, stream in ([*words, "--cfg", "job"], "err"), (["plan", *words], "err"), ([*words, "--help"], "out"):
        assert main(command) == 0
        text = getattr(capsys.readouterr(), stream)
        lines = [line for line in text.splitlines() if line.startswith("choices ") and "model=llama2_7b" in line]
        assert len(lines) == 1, text
        for value in ("model.n_layers=4", "model.d_model=128", "model.n_heads=4", "model.d_ff=512"):
            assert value in lines[0]
        assert "configs/experiment/sketch.yaml" in lines[0]
    assert load(["+experiment=sketch", "attention_pattern=causal"]).notes == load(["model=llama2_7b"]).notes == ()


def test_long_lists_are_short(tmp_path):
    (tmp_path / "experiment").mkdir()
    values = "".join(
        f"  {key}: 8\n" for key in ("n_layers", "d_model", "n_heads", "d_ff", "head_dim", "vocab_size", "bias")
    )
    (tmp_path / "experiment" / "all.yaml").write_text(f"# @package _global_\nmodel:\n{values}")
    (note,) = load(["+experiment=all", "model=neox_tiny"], (tmp_path,)).notes
    assert " and 1 more of " in note


def test_experiments_of_a_folder_and_what_they_are_made_of(tmp_path):
    """A base beside them, one in a folder that is no group, and a choice that sets options from the top itself."""
    for name, text in {
        "experiment/_base": "# @package _global_\ndefaults: [{override /model: neox_tiny}]\nmodel: {n_layers: 3}\n",
        "parts/wide": "# @package _global_\nmodel: {d_model: 64}\noptim: {lr: 0.5}\n",
        "experiment/mine": "# @package _global_\ndefaults: [_base, /parts/wide]\ndata: {order: stream}\n",
        "data/theirs": "# @package _global_\ndefaults: [/data/embedded@data]\ndata: {seed: 7}\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    get = partial(load, config_dirs=(tmp_path,))
    assert (get(["+experiment=mine"]).config.model.n_layers, get(["+experiment=mine"]).config.model.d_model) == (3, 64)
    loaded = get(["+experiment=mine", "model=llama_tiny", "data=theirs"])
    model, data = loaded.config.model, loaded.config.data
    assert (model.n_layers, model.d_model, data.order, data.seed) == (6, 256, "shuffled", 7)
    assert loaded.config.optim.lr == 0.5
    of_model, of_data = loaded.notes
    assert "model.n_layers=3" in of_model and "parts/wide.yaml" in of_model and "data.order=stream" in of_data
    points = _sweep.jobs(["+experiment=mine", "model=llama_tiny,neox_tiny"], (tmp_path,))
    assert [get(point.overrides).config.model.n_layers for point in points] == [6, 6]


def test_where_two_do_not_go_together_both_are_named():
    lines = refused(["+experiment=transformer_xl", "data=embedded"])
    has(lines, "E-CFG-43", ["command line data=embedded", "in place of configs/experiment/transformer_xl.yaml:11"])
    lines = refused(["+experiment=alibi_350m", "position/rope_scaling=yarn"])
    has(lines, "E-CFG-33", ["position/rope_scaling=yarn", "configs/experiment/alibi_350m.yaml:6"])
    lines = refused(["+experiment=yarn_llama2_tiny_128k", "position=alibi"])
    assert len(lines) == 1
    has(lines, "E-CFG-33", ["command line position=alibi", "yarn_llama2_tiny_128k.yaml:16 stages.to_128k"])
    load(["+experiment=yarn_llama2_tiny_128k", "position=alibi", "~stages.to_128k.position.rope_scaling"])
