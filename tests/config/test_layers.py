"""Layers of several kinds in the configuration: what a kind inherits, what it may say, and how it is refused."""

import pytest
import yaml

from coca_train.attention.layer_types import describe_layers, layer_types, layer_types_of
from coca_train.config.files import choices, config_dir
from coca_train.evaluation.variants import Choice, variants
from coca_train.settings import load
from coca_train.stages import resolve
from coca_train.vary import vary
from tests.config.support import has, refused, table

ROPE = ["model.n_layers=6", "position=rope", "position.rope_scaling.theta=500000.0"]
LOCAL = "+layers.types.local={attention_pattern: {name: sliding_window, window: 16}}"
PATTERN = "layers.pattern=[default, default, local]"


def of(config):
    return layer_types(config.layers, config.model, config.position, config.attention_pattern)


def test_every_layer_is_as_the_run_says():
    config = load([]).config
    assert layer_types_of(config.layers, 6) == ("default",) * 6
    assert of(config) == {"default": (config.position, config.attention_pattern, config.model.logit_scale)}


def test_a_pattern_is_repeated_to_the_last_layer():
    config = load([*ROPE, LOCAL, PATTERN, "model.n_layers=5"]).config
    assert layer_types_of(config.layers, 5) == ("default", "default", "local", "default", "default")
    assert describe_layers(config.layers, 5) == "4 default, 1 local"
    assert list(of(config)) == ["default", "local"]


def test_a_kind_says_only_what_differs():
    layers = of(load([*ROPE, LOCAL, PATTERN]).config)
    assert layers["local"].position == layers["default"].position
    assert (layers["default"].attention_pattern.name, layers["local"].attention_pattern.window) == ("causal", 16)


def test_another_choice_brings_the_values_of_its_file_and_theta_stays():
    words = [
        "layers.types.local.position.rope_scaling={name: yarn, factor: 3.0}",
        "layers.types.local.attention_pattern.name=sinks",
    ]
    loaded = load([*ROPE, LOCAL, PATTERN, *words, "train.seq_len=64"])
    layers = of(loaded.config)["local"]
    assert (layers.position.rope_scaling.name, layers.position.rope_scaling.theta) == ("yarn", 500000.0)
    assert (layers.position.rope_scaling.factor, layers.position.rope_scaling.original_seq_len) == (3.0, 64)
    assert (layers.attention_pattern.name, layers.attention_pattern.n_sink, layers.attention_pattern.window) == (
        "sinks",
        4,
        16,
    )
    kept = yaml.safe_load(loaded.yaml)["layers"]["types"]["local"]
    assert kept["position"]["rope_scaling"]["original_seq_len"] == 64


def test_another_scheme_brings_its_file_with_the_frequencies_it_begins_with():
    words = [
        "position=alibi",
        "layers.pattern=[default,turned]",
        "+layers.types.turned.position={scheme: rope, rope_scaling: {theta: 700.0}}",
    ]
    turned = of(load(words).config)["turned"].position
    assert (turned.scheme, turned.rotary_pct) == ("rope", 1.0)
    assert (turned.rope_scaling.name, turned.rope_scaling.theta) == ("plain", 700.0)


def test_other_frequencies_reach_what_a_kind_leaves_open():
    config = load([*ROPE, "layers=gemma3"]).config
    varied = of(
        vary(config, ["position/rope_scaling=linear", "position.rope_scaling.factor=8.0", "attention_pattern=sinks"])
    )
    assert varied["global"].position.rope_scaling.name == "linear"
    assert varied["global"].position.rope_scaling.theta == 1e6
    assert (varied["local"].position.rope_scaling.name, varied["local"].position.rope_scaling.theta) == ("plain", 1e4)
    assert [varied[kind].attention_pattern.name for kind in ("local", "global")] == ["sliding_window", "causal"]
    tried = [Choice("linear@factor:4"), Choice("trained", "sinks")]
    assert not any(variant.problem for variant in variants(load([*ROPE, LOCAL, PATTERN]).config, tried).values())


def test_a_variant_that_one_kind_cannot_take():
    """CoCA of one kind takes the run's attention pattern, and does not go with sinks."""
    config = load([*ROPE, "layers.pattern=[default, coca]", "+layers.types.coca.position.scheme=coca"]).config
    (layers,) = variants(config, [Choice("trained", "sinks")]).values()
    assert "type coca: sinks" in layers.problem


def test_a_stage_scales_the_global_layers():
    words = ["stages.all.layers={types: {global: {position: {rope_scaling: {name: linear, factor: 8.0}}}}}"]
    config = load([*ROPE, "layers=gemma3", *words]).config
    layers = of(resolve(config)[0].config)
    assert (layers["global"].position.rope_scaling.name, layers["global"].position.rope_scaling.theta) == (
        "linear",
        1e6,
    )
    assert layers["local"] == of(config)["local"]


REFUSED = """
`layers.pattern=[default, default, locl]` | E-CFG-66 | command line layers.pattern= | locl | default, local
+layers.types.Local={} | E-CFG-46 | layers.types.Local | small letters
+layers.types.default={} | E-CFG-46 | layers.types.default
layers.types.local.attention_pattern.window=0 | E-CFG-05
  | line layers.types.local.attention_pattern.window=0: in layers of type local: it needs a whole number > 0
layers.types.local.attention_pattern.windw=3 | E-CFG-01
  | command line layers.types.local.attention_pattern.windw=3: | type local
+layers.types.local.position.rope_scaling.thta=3.0 | E-CFG-01
  | command line layers.types.local.position.rope_scaling.thta=3.0
+layers.types.local.positon.scheme=nope | E-CFG-01 | layers.types.local.positon
+layers.types.local.position.scheme=nop | E-CFG-31 | layers.types.local.position.scheme=nop: | type local
`layers.types.local.logit_scale={name: stepss}` | E-CFG-31 | layers.types.local.logit_scale.name=stepss | steps
layers.types.local.position.scheme=learned | E-CFG-68 | embeddings, which all layers share
`layers.types.local={position: {scheme: coca}, attention_pattern: {name: sinks}}` | E-CFG-44
  | layers.types.local.attention_pattern.name=sinks | type local
layers.pattern=[local] position=t5 | E-CFG-69 | no layer is default, and t5
position=transformer_xl data.order=stream | E-CFG-67 | memory_len
model.d_model=36 model.n_heads=4 model.head_dim=9 position=alibi layers.types.local.position.scheme=rope | E-CFG-20
  | type local: | 9 rotated features
`+stages.two={layers: {types: {local: {attention_pattern: {window: 0}}}}}` | E-CFG-05
  | stages.two.layers.types.local.attention_pattern.window=0: in stage two: in layers of type local
"""


@table(REFUSED)
def test_refused_by_the_key_that_is_wrong(words, code, texts):
    has(refused(["position=rope", LOCAL, *([] if "layers.pattern" in words[0] else [PATTERN]), *words]), code, texts)


def test_chunks_are_for_training_where_other_layers_see_more():
    assert refused(["attention_pattern=segments"])[0].startswith("E-CFG-45")
    load(["position=rope", "layers=llama4"])
    kind = "+layers.types.nope={attention_pattern: {name: causal}}"
    load(["position=rope", "attention_pattern=segments", kind, "layers.pattern=[default,nope]"])


@pytest.mark.parametrize("name", choices("layers", (config_dir(),)))
def test_every_choice_goes_with_rope(name):
    config = load(["position=rope", f"layers={name}", "model.n_layers=12"]).config
    assert {kind.position.scheme for kind in of(config).values()} <= {"rope", "nope"}
    summary = choices("layers", (config_dir(),))[name].read_text().splitlines()[0]
    assert summary.startswith("# ")
