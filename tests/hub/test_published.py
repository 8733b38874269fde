"""Models as they were published: read as their class of transformers reads them, or refused with a reason."""

import json
import math

import pytest
import torch
import transformers

from coca_train.hub.config_json import read_architecture
from coca_train.hub.families import FAMILIES
from coca_train.runtime.errors import UserError
from tests.hub import models
from tests.hub.class_defaults import ours, reading
from tests.hub.published import LLAMA2, MISTRAL, NEOX, READ, REFUSED, YARN


def small(values):
    """The same keys with widths and lengths that a test can build; what a ratio of lengths says stays."""
    heads = 4 if values.get("num_key_value_heads", 0) not in (1, 3) else 3
    kv = values.get("num_key_value_heads")
    width = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    width = min(width, 32)
    changed = values | {
        "hidden_size": heads * width, "intermediate_size": 48, "num_attention_heads": heads, "vocab_size": 101,
        "max_position_embeddings": min(128, values["max_position_embeddings"]), "initializer_range": 0.15,
    }  # fmt: skip
    if kv is not None:
        changed["num_key_value_heads"] = heads if kv == values["num_attention_heads"] else {4: 2, 3: 1}[heads]
    if "head_dim" in values:
        changed["head_dim"] = width
    n_layers = changed["num_hidden_layers"] = 4 if "no_rope_layers" in values else 2
    for key in ("no_rope_layers", "layer_types"):
        if key in values:
            changed[key] = values[key][:n_layers]
    if values.get("sliding_window"):
        changed["sliding_window"] = 40
    if (scaling := values.get("rope_scaling")) and "original_max_position_embeddings" in scaling:
        changed["rope_scaling"] = scaling | {"original_max_position_embeddings": 32}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if values.get(key) not in (None, -1):
            changed[key] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}[key]
    return changed


@pytest.mark.parametrize("name", READ)
def test_read_as_its_class_reads_it(name, tmp_path):
    models.edit_new(tmp_path, READ[name])
    theirs = json.loads(json.dumps(READ[name]))
    assert ours(read_architecture(tmp_path)) == reading(theirs)


@pytest.mark.parametrize("name", READ)
def test_computed_as_its_class_computes_it(name, tmp_path, import_run):
    values = small(READ[name])
    folder = tmp_path / "model"
    config = {key: value for key, value in values.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    torch.manual_seed(0)
    cls = getattr(transformers, FAMILIES[values["model_type"]].transformers_class)
    model = cls(transformers.AutoConfig.for_model(**json.loads(json.dumps(config))))
    model.save_pretrained(folder)
    models.edit_new(folder, values)  # as it was published, not as this version writes it
    record = json.loads((import_run(folder) / "parity.json").read_text())
    assert record["passed"]
    assert max(probe["max_abs_logit"] for probe in record["probes"]) > 0.5


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name, tmp_path):
    values, reason = REFUSED[name]
    models.edit_new(tmp_path, values)
    with pytest.raises(UserError, match="E-IOP-04") as raised:
        read_architecture(tmp_path)
    assert reason in str(raised.value)
    assert "Fix:" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "n_parameters"),
    [
        ("LLaMA 1 7B", 6_738_415_616),
        ("Llama 3 8B", 8_030_261_248),
        ("Mistral 7B 0.1", 7_241_732_096),
        ("SmolLM2 135M", 134_515_008),
        ("Pythia 2.8B", 2_775_208_960),
    ],
)
def test_has_as_many_parameters_as_were_published(name, n_parameters, tmp_path):
    models.edit_new(tmp_path, READ[name])
    assert sum(math.prod(shape) for shape in read_architecture(tmp_path).shapes().values()) == n_parameters


HARMLESS = [
    (LLAMA2, "is_llama_config", True, False),
    (LLAMA2, "rope_interleaved", False, True),
    (LLAMA2, "activation", "swiglu", "relu"),
    (LLAMA2, "pruned_heads", {}, {"0": [1]}),
    (READ["SmolLM3 3B"], "max_window_layers", 28, "28"),
    (READ["SmolLM3 3B"] | {"use_sliding_window": True}, "max_window_layers", None, 28),
    (NEOX, "rope_theta", 10000, 20000),
    (NEOX, "partial_rotary_factor", 0.25, 0.5),
    (LLAMA2, "rope_scaling", YARN, YARN | {"finetuned": "yes"}),
]


@pytest.mark.parametrize(("base", "key", "harmless", "other"), HARMLESS)
def test_harmless_for_one_value(base, key, harmless, other, tmp_path):
    models.edit_new(tmp_path, base | {key: harmless})
    read_architecture(tmp_path)
    models.edit_new(tmp_path, base | {key: other})
    with pytest.raises(UserError, match=r"E-IOP-0[34]") as raised:
        read_architecture(tmp_path)
    assert key in str(raised.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (MISTRAL | {"rope_scaling": YARN}, "rope_scaling.finetuned"),
        (LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 2.0, "mystery": 1}}, "rope_scaling.mystery"),
        (LLAMA2 | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "m": 1}}, "rope_parameters.m"),
    ],
)
def test_a_key_of_a_section_is_ignored_by_its_path(values, named, tmp_path):
    models.edit_new(tmp_path, values)
    with pytest.raises(UserError, match=f"ignore={named}"):
        read_architecture(tmp_path)
    read_architecture(tmp_path, (named,))
    with pytest.raises(UserError, match="E-IOP-04"):
        read_architecture(tmp_path, (named.rpartition(".")[2],))


def test_what_is_read_is_not_ignored(tmp_path):
    models.edit_new(tmp_path, LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    ignored = read_architecture(tmp_path, ("rope_scaling.factor", "rope_scaling", "hidden_size"))
    assert ignored == read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
         "factor"),
        ({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 1.5e4}, "rope_theta": 1e4}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0},
          "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}, "rope_theta"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 2048}, "original_max_position_embeddings"),
    ],
)  # fmt: skip
def test_what_is_said_twice_is_the_same(values, named, tmp_path):
    models.edit_new(tmp_path, LLAMA2 | values)
    with pytest.raises(UserError, match="E-IOP-04") as raised:
        read_architecture(tmp_path)
    assert named in str(raised.value)


def test_two_sections_that_agree(tmp_path):
    same = {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 5e5}
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    models.edit_new(tmp_path, LLAMA2 | same | newer)
    both = read_architecture(tmp_path)
    models.edit_new(tmp_path, LLAMA2 | same)
    assert both == read_architecture(tmp_path)
