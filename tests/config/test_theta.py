"""The base theta belongs to the weights: where they get other frequencies, it stays unless it is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coca_train.attention.layer_types import layer_types
from coca_train.config.schema import Config
from coca_train.evaluation.variants import Choice, after_training, variants
from coca_train.settings import load
from coca_train.stages import resolve
from coca_train.vary import vary

TRAINED = "# @package _global_\n# Weights with a base of their own\ndefaults: [{override /position: rope}]\n"
THETA = "position: {rope_scaling: {theta: 500000.0}}\n"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Config]:
    """A run of the weights, whose theta is 500,000: run(words)."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "trained.yaml").write_text(TRAINED + THETA)
    return lambda *words: load(["+experiment=trained", *words], (tmp_path,)).config


def section(name: str, options: dict[str, float]) -> str:
    return "{rope_scaling: {" + ", ".join([f"name: {name}", *(f"{k}: {v}" for k, v in options.items())]) + "}}"


def words(name: str, options: dict[str, float]) -> list[str]:
    return [f"position/rope_scaling={name}", *(f"position.rope_scaling.{k}={v}" for k, v in options.items())]


def of_a_stage(run, *chosen):
    return resolve(run(f"+stages.two={{max_steps: 60, position: {section(*chosen)}}}"))[1].config.position


def of_a_kind(run, *chosen):
    config = run("layers.pattern=[default, far]", f"+layers.types.far={{position: {section(*chosen)}}}")
    return layer_types(config.layers, config.model, config.position, config.attention_pattern)["far"].position


def of_words_of_a_stage(run, name, options):
    rope_scaling = [f"+stages.two.position.rope_scaling.{key}={value}" for key, value in options.items()]
    config = run("+stages.two.max_steps=60", f"+stages.two.position.rope_scaling.name={name}", *rope_scaling)
    return resolve(config)[1].config.position


def of_a_kind_in_a_stage(run, *chosen):
    layers = f"{{types: {{far: {{position: {section(*chosen)}}}}}}}"
    far = "+layers.types.far.attention_pattern.name=sliding_window"
    config = resolve(run("layers.pattern=[default, far]", far, f"+stages.two={{max_steps: 60, layers: {layers}}}"))[
        1
    ].config
    return layer_types(config.layers, config.model, config.position, config.attention_pattern)["far"].position


def text_of(name, options):
    return "@".join([name, *(f"{k}:{v}" for k, v in options.items())])


def of_a_training_s_own_report(run, *chosen):
    config = run(f"eval.extrapolation.rope_scalings=[{text_of(*chosen)}]")
    return list(variants(config, after_training(config)).values())[-1].position


def of_a_variant(run, name, options):
    text = text_of(name, options)
    (variant,) = variants(run(), [Choice(text, "trained")]).values()
    return variant.position


CHECKPOINTING = {
    "stage": of_a_stage,
    "stage, word by word": of_words_of_a_stage,
    "kind of layers": of_a_kind,
    "kind of layers in a stage": of_a_kind_in_a_stage,
    "variant of a training": of_a_training_s_own_report,  # and of its probes
    "variant": of_a_variant,  # grid.rope_scalings of an evaluation
    "vary": lambda run, *chosen: vary(run(), words(*chosen)).position,  # options of generate
}


@pytest.mark.parametrize("way", CHECKPOINTING)
@pytest.mark.parametrize(("named", "theta"), [({}, 500_000.0), ({"theta": 20000.0}, 20_000.0)])
def test_theta(run, way, named, theta):
    rope_scaling = CHECKPOINTING[way](run, "yarn", {"factor": 16.0} | named).rope_scaling
    assert (rope_scaling.name, rope_scaling.factor, rope_scaling.theta) == ("yarn", 16, theta)


def test_typed_over_an_experiment_a_choice_is_taken_as_it_is(run):
    """Nothing of the section that the experiment fills applies (test_typed_choices.py)."""
    assert run(*words("yarn", {"factor": 16.0})).position.rope_scaling.theta == 10_000


@pytest.mark.parametrize("way", ["variant", "vary"])
def test_a_choice_that_is_there_for_its_base_brings_it(run, way):
    assert CHECKPOINTING[way](run, "code_llama", {}).rope_scaling.theta == 1e6
    assert CHECKPOINTING[way](run, "plain", {"theta": 20000.0}).rope_scaling.theta == 20_000
