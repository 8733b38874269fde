"""config.json: what is read, and what is refused because it would change the mathematics."""

import pytest

from coca_train.hub.config_json import read_architecture
from coca_train.runtime.errors import UserError
from tests.hub import models

WRONG = {
    "llama_gqa": [
        ({"model_type": "xglm"}, "04", "model_type='xglm'"),
        ({"model_type": ...}, "04", "model_type=None"),
        ({"hidden_act": "gelu"}, "04", "hidden_act='gelu'"),
        ({"quantization_config": {"bits": 4}}, "04", "quantization_config"),
        ({"model_type": "evil", "auto_map": {"AutoModel": "x.Y"}}, "04", "never run"),
        ({"logit_softcap": 30.0}, "04", "logit_softcap=30.0"),
        ({"layer_types": ["full_attention"] * 2}, "04", "layer_types"),
        ({"partial_rotary_factor": 0.5}, "04", "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "04", "key/value heads"),
        ({"hidden_size": 50, "head_dim": ...}, "04", "4 heads do not divide a width of 50"),
        ({"hidden_size": "48"}, "03", "hidden_size='48'"),
        ({"hidden_size": 0}, "03", "hidden_size=0"),
        ({"hidden_size": None}, "03", "hidden_size=None"),
        ({"num_hidden_layers": True}, "03", "num_hidden_layers=True"),
        ({"rms_norm_eps": "small"}, "03", "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "03", "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "03", "tie_word_embeddings=1"),
        ({"rope_parameters": "yarn"}, "03", "rope_parameters"),
        ({"rope_theta": 10000.0}, "04", "rope_theta"),  # rope_parameters says 500
        ({"rope_parameters": ..., "rope_theta": -1.0}, "04", "rope_theta"),
        ({"rope_parameters": ..., "rope_theta": 0.5}, "04", "rope_theta"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "04", "short_factor=None"),
        ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "04", "rope_type=su; known are default"),
        ({"rope_scaling": {"rope_type": "linear"}}, "04", "factor=None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "04", "factor=0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mystery": 1}}, "04", "mystery=1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "original_max_position_embeddings": 8}}, "04", "orig"),
        ({"rope_scaling": {"factor": 2.0}}, "04", "factor=2.0 with rope_type=default"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": None}}, "04", "truncate"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}}, "04", "beta_fast"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "04", "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 1}},
         "04", "high_freq_factor"),
    ],
    "gpt_neox": [
        ({"hidden_act": "relu"}, "04", "hidden_act='relu'"),
        ({"rotary_pct": 0.5}, "04", "partial_rotary_factor"),  # rope_parameters says 0.25
        ({"num_attention_heads": 7}, "04", "7 heads do not divide a width of 64"),
    ],
    "mistral": [({"sliding_window": -1}, "03", "sliding_window"), ({"sliding_window": 4.5}, "03", "sliding_window")],
}  # fmt: skip
CASES = [(kind, *case) for kind, cases in WRONG.items() for case in cases]


@pytest.mark.parametrize(("kind", "changes", "error", "words"), CASES)
def test_refused_in_words(kind, changes, error, words, copy):
    folder = copy(kind)
    if "rope_scaling" in changes:  # in place of the one that the folder has under its newer name
        changes = {"rope_parameters": ...} | changes
    models.edit(folder, **changes)
    with pytest.raises(UserError, match=f"E-IOP-{error}") as raised:
        read_architecture(folder)
    assert words in str(raised.value)
    assert "Fix:" in str(raised.value)
    assert raised.value.exit_code == 2


def test_what_is_known_to_change_nothing_can_be_named(copy):
    folder = copy()
    models.edit(folder, mystery=1)
    with pytest.raises(UserError, match="ignore=mystery"):
        read_architecture(folder)
    assert read_architecture(folder, ("mystery",)) == read_architecture(folder, ("mystery", "other"))


def test_mistral_window(copy):
    folder = copy("mistral")
    arch = read_architecture(folder)
    assert (arch.attention_pattern.name, arch.attention_pattern.window) == ("sliding_window", 20)
    models.edit(folder, sliding_window=None)
    assert read_architecture(folder).attention_pattern.name == "causal"
