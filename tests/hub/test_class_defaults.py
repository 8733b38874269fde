"""A key that is missing from config.json means what its class of transformers takes then, and null what it takes null
for."""

import json

import pytest

from coca_train.hub import families
from coca_train.hub.config_json import read_architecture
from coca_train.runtime.errors import UserError
from tests.hub import models
from tests.hub.class_defaults import ours, reading

OTHERS = {  # of each family, every key that is read, with another value than its default
    "llama": {
        "vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 96, "initializer_range": 0.03, "num_key_value_heads": 2, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "head_dim": 8, "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": 512, "rope_theta": 500.0,
    },
    "mistral": {
        "vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 16,
        "intermediate_size": 96, "initializer_range": 0.03, "num_key_value_heads": 2, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "head_dim": 8, "max_position_embeddings": 512,
        "rope_theta": 500.0, "sliding_window": 20,
    },
    "smollm3": {
        "vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
        "intermediate_size": 96, "initializer_range": 0.03, "num_key_value_heads": 2, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "head_dim": 16, "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": 512, "rope_theta": 500.0, "use_sliding_window": True, "sliding_window": 7,
        "no_rope_layer_interval": 2, "no_rope_layers": [0, 1, 1],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "gpt_neox": {
        "vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 96, "initializer_range": 0.03, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6,
        "tie_word_embeddings": True, "use_parallel_residual": False, "attention_bias": True,
        "max_position_embeddings": 512, "rotary_emb_base": 500.0, "rotary_pct": 0.5,
    },
}  # fmt: skip
DEPENDENT = {"num_attention_heads", "num_hidden_layers"}  # lists of layers and groups of heads fit one value of these
WITH = dict.fromkeys((("smollm3", key) for key in ("use_sliding_window", "sliding_window")), ("layer_types",))
TAKEN = {  # where null is a value
    ("llama", "num_key_value_heads"), ("llama", "head_dim"), ("mistral", "head_dim"), ("mistral", "sliding_window"),
    ("smollm3", "num_key_value_heads"), ("smollm3", "no_rope_layers"), ("smollm3", "layer_types"),
}  # fmt: skip
CASES = [(family, key) for family, keys in OTHERS.items() for key in keys if key not in DEPENDENT]


def read(folder, values):
    models.edit_new(folder, values)
    return ours(read_architecture(folder))


def test_every_key_that_is_read_is_in_the_table(tmp_path):
    for name, family in ((name, families.FAMILIES[name]) for name in OTHERS):
        keys = {field.theirs for field in (*family.fields, *family.biases)} | {
            family.positions.theta_key,
            "max_position_embeddings",
        }
        assert (
            keys | ({family.positions.share_key} if not family.positions.whole_head else set()) <= OTHERS[name].keys()
        )


@pytest.mark.parametrize("family", [name for name in families.FAMILIES if name != "ministral"])  # it needs a head_dim
def test_of_nothing_but_the_type(family, tmp_path):
    said = families.FAMILIES[family]
    of_several = {key.theirs: key.value for key in said.fixed if key.value != key.default}  # of the same type
    values = {"model_type": said.model_type or family, **of_several}
    assert read(tmp_path, values) == reading(values)


@pytest.mark.parametrize("family", OTHERS)
def test_of_every_key(family, tmp_path):
    values = {"model_type": family, **OTHERS[family]}
    assert read(tmp_path, values) == reading(values)


@pytest.mark.parametrize(("family", "key"), CASES)
def test_of_every_key_but_one(family, key, tmp_path):
    values = {"model_type": family, **OTHERS[family]}
    for gone in (key, *WITH.get((family, key), ())):
        del values[gone]
    assert read(tmp_path, values) == reading(values)


@pytest.mark.parametrize(("family", "key"), CASES)
def test_null_is_what_the_class_takes_it_for(family, key, tmp_path):
    values = {"model_type": family, **OTHERS[family], key: None}
    if (family, key) in TAKEN:
        assert read(tmp_path, values) == reading(values)
        return
    with pytest.raises(UserError, match=r"E-IOP-0[34]"):
        read(tmp_path, values)


def test_a_window_that_is_not_there_is_null_and_not_missing(tmp_path):
    values = {"model_type": "mistral", **OTHERS["mistral"]}
    del values["sliding_window"]
    assert read(tmp_path, values)["windows"] == [4096] * 3
    assert read(tmp_path, values | {"sliding_window": None})["windows"] == [None] * 3
    assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] is None
