"""A value of config.json of any type: what transformers reads there, or an error of ours, never a traceback."""

import copy
import json
import math

import pytest

from coca_train.hub.config_json import read_architecture
from coca_train.hub.config_keys import HARMLESS, ONLY
from coca_train.runtime.errors import UserError
from tests.hub.class_defaults import ours, reading
from tests.hub.test_class_defaults import OTHERS

VALUES = {
    "text": "16", "decimal": "1.0", "empty": "", "list": [4], "no_list": [], "nested": [[1]], "object": {"a": 1},
    "true": True, "false": False, "null": None, "nan": math.nan, "minus_one": -1, "zero": 0, "half": 0.5, "one": 1,
    "whole": 4.0, "infinite": math.inf, "huge": 10**400, "large": 10**12, "tiny": 1e-320,
}  # fmt: skip
LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {
        "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.1 * math.log(4) + 1,
        "beta_fast": 30.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": True, "finetuned": True,
    },
    "llama3": {
        "factor": 8.0, "original_max_position_embeddings": 128, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.1, **LISTS},
    "proportional": {"factor": 1.0, "partial_rotary_factor": 0.75},
}  # fmt: skip


def written(folder, values):
    """json.dumps writes NaN and Infinity as Python reads them; 1e400 is how others write the latter."""
    text = json.dumps(values).replace("Infinity", "1e400")
    (folder / "config.json").write_text(text)
    return text


def read(folder, values):
    """What we read, None where we refuse."""
    written(folder, values)
    try:
        return read_architecture(folder)
    except UserError as refused:
        error = str(refused)
    assert error.startswith(("E-IOP-03", "E-IOP-04"))
    assert "Fix:" in error
    return None


def as_float(key, value):
    """JSON has one kind of number; the newest classes want a point in some of them, and older ones do not."""
    of_float = isinstance(OTHERS["llama"].get(key, OTHERS["gpt_neox"].get(key)), float)
    return float(value) if of_float and type(value) is int else value


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("family", OTHERS)
def test_every_key(family, value, tmp_path):
    base = {"model_type": family, **OTHERS[family]}
    for key in OTHERS[family]:
        if (mine := read(tmp_path, base | {key: VALUES[value]})) is not None:
            assert ours(mine) == reading(base | {key: as_float(key, VALUES[value])}), key
    for key in ("model_type", "rope_scaling", "rope_parameters", "original_max_position_embeddings"):
        if (mine := read(tmp_path, base | {key: VALUES[value]})) is not None:
            assert ours(mine) == reading(base | ({key: VALUES[value]} if VALUES[value] else {})), key


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("family", OTHERS)
def test_every_key_that_says_nothing(family, value, tmp_path):
    """Accepted or refused, and nothing else changes."""
    base = {"model_type": family, **OTHERS[family]}
    expected = read(tmp_path, base)
    for key in (*HARMLESS, *ONLY, "mystery", "quantization_config", "coca_train"):
        if key not in ("model_type", *OTHERS[family]):
            assert read(tmp_path, base | {key: VALUES[value]}) in (None, expected)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("rope_type", SCALINGS)
def test_every_key_of_a_scaling(rope_type, section, value, tmp_path):
    base = {"model_type": "llama", **OTHERS["llama"], "head_dim": 16}
    del base["rope_theta"]
    scaling = {"rope_type": rope_type, "rope_theta": 500.0, **SCALINGS[rope_type]}
    plain = read(tmp_path, base | {section: scaling})
    assert plain is not None or rope_type == "longrope"
    for key in (*scaling, "type", "partial_rotary_factor", "mystery"):
        values = base | {section: copy.deepcopy(scaling) | {key: VALUES[value]}}
        if (mine := read(tmp_path, values)) is not None:
            theirs = frequencies_of_transformers(values)
            assert math.isclose(ours(mine)["theta"], theirs["rope_theta"]), key
            compare(mine, theirs, values)


def frequencies_of_transformers(values):
    import transformers

    config = transformers.LlamaConfig(**{key: value for key, value in values.items() if key != "model_type"})
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    return {**config.rope_parameters, "inv_freq": rotary.inv_freq, "temperature": rotary.attention_scaling}


def compare(mine, theirs, values):
    import torch

    spectrum = mine.position.rope_scaling.build(mine.head_dim)(mine.seq_len)
    dynamic = theirs["rope_type"] == "longrope"  # theirs begins with the short factors, whatever the length
    expected = theirs["inv_freq"]
    if dynamic:
        spectrum = mine.position.rope_scaling.build(mine.head_dim)(1)
    torch.testing.assert_close(spectrum.inv_freq_J, expected, rtol=1e-5, atol=0)
    assert math.isclose(spectrum.temperature, theirs["temperature"], rel_tol=1e-6), values
