"""Layers of several kinds in the configuration: what a kind inherits, what it may say, and how it is refused."""

import pytest
import yaml

from coca_train.attention.layer_types import in_words, kinds, kinds_of
from coca_train.config.files import choices, config_dir
from coca_train.evaluation.variants import Choice, variants
from coca_train.schedule import resolve
from coca_train.settings import load
from coca_train.vary import vary
from tests.config.support import has, refused, table

ROPE = ["model.n_layers=6", "position=rope", "position.frequencies.theta=500000.0"]
LOCAL = "+layers.kinds.local={visibility: {name: sliding_window, window: 16}}"
PATTERN = "layers.pattern=[own, own, local]"


def of(config):
    return kinds(config.layers, config.model, config.position, config.visibility)


def test_every_layer_is_as_the_run_says():
    config = load([]).config
    assert kinds_of(config.layers, 6) == ("own",) * 6
    assert of(config) == {"own": (config.position, config.visibility, config.model.logit_scale)}


def test_a_pattern_is_repeated_to_the_last_layer():
    config = load([*ROPE, LOCAL, PATTERN, "model.n_layers=5"]).config
    assert kinds_of(config.layers, 5) == ("own", "own", "local", "own", "own")
    assert in_words(config.layers, 5) == "4 own, 1 local"
    assert list(of(config)) == ["own", "local"]


def test_a_kind_says_only_what_differs():
    layers = of(load([*ROPE, LOCAL, PATTERN]).config)
    assert layers["local"].position == layers["own"].position
    assert (layers["own"].visibility.name, layers["local"].visibility.window) == ("causal", 16)


def test_another_choice_brings_the_values_of_its_file_and_theta_stays():
    words = [
        "layers.kinds.local.position.frequencies={name: yarn, factor: 3.0}",
        "layers.kinds.local.visibility.name=sinks",
    ]
    loaded = load([*ROPE, LOCAL, PATTERN, *words, "train.seq_len=64"])
    layers = of(loaded.config)["local"]
    assert (layers.position.frequencies.name, layers.position.frequencies.theta) == ("yarn", 500000.0)
    assert (layers.position.frequencies.factor, layers.position.frequencies.original_seq_len) == (3.0, 64)
    assert (layers.visibility.name, layers.visibility.n_sink, layers.visibility.window) == ("sinks", 4, 16)
    kept = yaml.safe_load(loaded.yaml)["layers"]["kinds"]["local"]
    assert kept["position"]["frequencies"]["original_seq_len"] == 64


def test_another_scheme_brings_its_file_with_the_frequencies_it_begins_with():
    words = [
        "position=alibi",
        "layers.pattern=[own,turned]",
        "+layers.kinds.turned.position={scheme: rope, frequencies: {theta: 700.0}}",
    ]
    turned = of(load(words).config)["turned"].position
    assert (turned.scheme, turned.rotary_pct) == ("rope", 1.0)
    assert (turned.frequencies.name, turned.frequencies.theta) == ("plain", 700.0)


def test_other_frequencies_reach_what_a_kind_leaves_open():
    config = load([*ROPE, "layers=gemma3"]).config
    varied = of(vary(config, ["position/frequencies=linear", "position.frequencies.factor=8.0", "visibility=sinks"]))
    assert varied["global"].position.frequencies.name == "linear"
    assert varied["global"].position.frequencies.theta == 1e6
    assert (varied["local"].position.frequencies.name, varied["local"].position.frequencies.theta) == ("plain", 1e4)
    assert [varied[kind].visibility.name for kind in ("local", "global")] == ["sliding_window", "causal"]
    tried = [Choice("linear@factor:4"), Choice("own", "sinks")]
    assert not any(variant.problem for variant in variants(load([*ROPE, LOCAL, PATTERN]).config, tried).values())


def test_a_variant_that_one_kind_cannot_take():
    """CoCA of one kind takes the run's visibility, and does not go with sinks."""
    config = load([*ROPE, "layers.pattern=[own, coca]", "+layers.kinds.coca.position.scheme=coca"]).config
    (layers,) = variants(config, [Choice("own", "sinks")]).values()
    assert "kind coca: sinks" in layers.problem


def test_a_stage_scales_the_global_layers():
    words = ["stages.all.layers={kinds: {global: {position: {frequencies: {name: linear, factor: 8.0}}}}}"]
    config = load([*ROPE, "layers=gemma3", *words]).config
    layers = of(resolve(config)[0].config)
    assert (layers["global"].position.frequencies.name, layers["global"].position.frequencies.theta) == ("linear", 1e6)
    assert layers["local"] == of(config)["local"]


REFUSED = """
`layers.pattern=[own, own, locl]` | E-CFG-66 | command line layers.pattern= | there is no kind locl; | own, local
+layers.kinds.Local={} | E-CFG-46 | layers.kinds.Local | small letters
+layers.kinds.own={} | E-CFG-46 | layers.kinds.own
layers.kinds.local.visibility.window=0 | E-CFG-05
  | line layers.kinds.local.visibility.window=0: in layers of the kind local: it needs a whole number > 0
layers.kinds.local.visibility.windw=3 | E-CFG-01 | command line layers.kinds.local.visibility.windw=3: | kind local
+layers.kinds.local.position.frequencies.thta=3.0 | E-CFG-01
  | command line layers.kinds.local.position.frequencies.thta=3.0
+layers.kinds.local.positon.scheme=nope | E-CFG-01 | layers.kinds.local.positon
+layers.kinds.local.position.scheme=nop | E-CFG-31 | layers.kinds.local.position.scheme=nop: | kind local
`layers.kinds.local.logit_scale={name: stepss}` | E-CFG-31 | layers.kinds.local.logit_scale.name=stepss | steps
layers.kinds.local.position.scheme=learned | E-CFG-68 | embeddings, which all layers share
`layers.kinds.local={position: {scheme: coca}, visibility: {name: sinks}}` | E-CFG-44
  | layers.kinds.local.visibility.name=sinks | kind local
layers.pattern=[local] position=t5 | E-CFG-69 | no layer is own, and t5 has parameters
position=transformer_xl data.order=stream | E-CFG-67 | memory_len
model.d_model=36 model.n_heads=4 model.head_dim=9 position=alibi layers.kinds.local.position.scheme=rope | E-CFG-20
  | kind local: | 9 rotated features
`+stages.two={layers: {kinds: {local: {visibility: {window: 0}}}}}` | E-CFG-05
  | stages.two.layers.kinds.local.visibility.window=0: in stage two: in layers of the kind local
"""


@table(REFUSED)
def test_refused_by_the_key_that_is_wrong(words, code, texts):
    has(refused(["position=rope", LOCAL, *([] if "layers.pattern" in words[0] else [PATTERN]), *words]), code, texts)


def test_chunks_are_for_training_where_other_layers_see_more():
    assert refused(["visibility=segments"])[0].startswith("E-CFG-45")
    load(["position=rope", "layers=llama4"])
    kind = "+layers.kinds.nope={visibility: {name: causal}}"
    load(["position=rope", "visibility=segments", kind, "layers.pattern=[own,nope]"])


@pytest.mark.parametrize("name", choices("layers", (config_dir(),)))
def test_every_choice_goes_with_rope(name):
    config = load(["position=rope", f"layers={name}", "model.n_layers=12"]).config
    assert {kind.position.scheme for kind in of(config).values()} <= {"rope", "nope"}
    summary = choices("layers", (config_dir(),))[name].read_text().splitlines()[0]
    assert summary.startswith("# ")
