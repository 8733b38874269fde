"""Every family of transformers that is read: small random folders as its class writes them, equal logits at once and at
four times their length, exported to the same class again; and what a missing key means."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coca_train.hub import families
from coca_train.hub.config_json import read_architecture
from coca_train.hub.config_keys import section_of
from coca_train.hub.exporting import export_run
from coca_train.hub.importing import import_weights
from coca_train.hub.options import ExportConfig, Form, ImportConfig
from coca_train.hub.weights import open_source
from coca_train.runtime.errors import UserError
from tests.cases import slow_unless
from tests.hub import models

GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 16}
# Model type, and what its small model has besides `models.SHARED`: each way in which a family differs.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", GROUPED | {"attention_bias": True}),
    "qwen2": ("qwen2", GROUPED),
    "qwen2 with windows": (
        "qwen2",
        GROUPED | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("qwen3", WIDE),
    "olmo": ("olmo", GROUPED | {"pad_token_id": 0}),
    "olmo2": ("olmo2", GROUPED | {"pad_token_id": 0}),
    "granite": (
        "granite",
        GROUPED
        | {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.7,
        },
    ),
    "seed_oss": ("seed_oss", WIDE),
    "starcoder2": ("starcoder2", GROUPED),
    "starcoder2 with a window": ("starcoder2", GROUPED | {"sliding_window": 7}),
    "stablelm": ("stablelm", GROUPED | {"hidden_size": 64, "use_qkv_bias": True}),
    "phi": ("phi", GROUPED | {"hidden_size": 64}),
    "phi3": ("phi3", GROUPED | {"pad_token_id": 0}),
    "glm": ("glm", WIDE | {"pad_token_id": 0}),
    "glm4": ("glm4", WIDE | {"pad_token_id": 0}),
    "cohere": ("cohere", GROUPED | {"pad_token_id": 0, "logit_scale": 0.9}),
    "cohere2": (
        "cohere2",
        GROUPED | {"pad_token_id": 0, "logit_scale": 0.9, "num_hidden_layers": 5, "sliding_window": 7},
    ),
    "gemma": ("gemma", WIDE | {"pad_token_id": 0}),
    "gemma2": (
        "gemma2",
        WIDE
        | {"pad_token_id": 0, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 25}
        | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    ),
    "arcee": ("arcee", GROUPED),
    "gemma3": (
        "gemma3_text",
        WIDE
        | {"pad_token_id": 0, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 25}
        | {"sliding_window_pattern": 2, "final_logit_softcapping": 4.0},
    ),
    "olmo3": ("olmo3", GROUPED | {"num_hidden_layers": 5, "sliding_window": 7}),
    "exaone4": ("exaone4", WIDE | {"num_hidden_layers": 5, "sliding_window": 7}),
    "exaone4 without windows": ("exaone4", WIDE | {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "ministral": ("ministral", WIDE | {"sliding_window": 7}),
    "ministral with full layers": (
        "ministral",
        WIDE | {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "ministral without windows": (
        "ministral",
        WIDE | {"sliding_window": 7, "layer_types": ["full_attention"] * 2},
    ),
    "gpt2": ("gpt2", {"n_positions": models.LENGTH * 4}),
    "gpt_bigcode": ("gpt_bigcode", {"n_positions": models.LENGTH * 4}),
    "opt": ("opt", {"ffn_dim": 96, "max_position_embeddings": models.LENGTH * 4}),
    "bloom": ("bloom", {"seq_length": models.LENGTH}),
    "bloom with three heads": ("bloom", {"num_attention_heads": 3, "seq_length": models.LENGTH}),
    "mpt with three heads": ("mpt", {"num_attention_heads": 3, "max_seq_len": 4 * models.LENGTH}),
    "mpt": ("mpt", {"max_seq_len": 4 * models.LENGTH, "attn_config": {"clip_qkv": 0.5}}),
    "falcon": ("falcon", {}),
    "falcon_40b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon_11b": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
}
QUICK = ["qwen2 with windows", "phi", "phi3", "glm4", "cohere2", "gemma3", "gpt2", "opt", "mpt", "falcon_40b"]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder as save_pretrained writes it, all weights random."""
    return models.write_family(tmp_path / "hf", *CASES[request.param])


@pytest.mark.parametrize("folder", slow_unless(QUICK, CASES), indirect=True)
def test_in_and_out_again(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = import_weights(
        ImportConfig(source=str(folder), name="run", root=str(tmp_path), tokenizer="none", parity_tokens=96)
    )
    checked = json.loads((run / "parity.json").read_text())
    assert max(probe["length"] for probe in checked["probes"]) >= 4 * models.LENGTH
    again = export_run(ExportConfig(run=str(run), to=str(tmp_path / "out"), tokenizer="none", parity_tokens=96))
    assert json.loads((again / "config.json").read_text())["model_type"] == folder_type(folder)
    for length in (models.LENGTH, 2 * models.LENGTH):
        assert torch.equal(models.logits(again, length), models.logits(folder, length))


@pytest.mark.parametrize(
    ("form", "own"),
    [
        ("gpt_neox", {"rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.25}),
        ("glm", {"rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.5, "attention_factor": 1.6}),
        (  # Phi-4-mini
            "phi3",
            {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            },
        ),
    ],
)
def test_a_temperature_on_the_rotated_part_of_a_head(form: Form, own: dict[str, Any], tmp_path: Path) -> None:
    """Of the original length and of four times as much: the logits of its class, and the same class again."""
    original = models.LENGTH
    shape = (WIDE if form == "glm" else {}) | {"hidden_size": 64, "max_position_embeddings": 4 * original}
    rope = {"rope_theta": 500.0, "original_max_position_embeddings": original, **own}
    config = models.config_of(form, shape | {"original_max_position_embeddings": original, "rope_parameters": rope})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
    run = import_weights(
        ImportConfig(source=str(tmp_path / "hf"), name="run", root=str(tmp_path), tokenizer="none", parity_tokens=96)
    )
    with open_source(str(run)) as source:
        assert source.architecture.position.temperature_on == "rotated"
        ours, own_form = models.both(source)
    again = export_run(
        ExportConfig(run=str(run), to=str(tmp_path / "out"), tokenizer="none", parity_tokens=96, form=form)
    )
    assert folder_type(again) == form
    for length in (original, 4 * original):
        theirs = models.logits(tmp_path / "hf", length)
        ids = torch.randint(models.VOCAB, (1, length), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            assert models.same(ours(ids)[0], theirs)
            assert models.same(own_form(ids, use_cache=False).logits[0], theirs)
        assert torch.equal(models.logits(again, length), theirs)


def folder_type(folder: Path) -> str:
    return json.loads((folder / "config.json").read_text())["model_type"]


KEYS = [
    (name, field.theirs)
    for name in dict.fromkeys(kind for kind, _ in CASES.values())
    for field in (*families.FAMILIES[name].fields, *families.FAMILIES[name].biases)
    # Their classes write what follows from their own defaults.
    if (field.theirs, field.default) not in (("head_dim", None), ("ffn_hidden_size", None))
]


SIZES = (  # which fit each other, and lists that have an entry a layer
    *("num_attention_heads", "hidden_size", "num_key_value_heads", "num_hidden_layers", "head_dim", "layer_types"),
    *("n_embd", "n_head", "n_layer", "d_model", "n_heads", "n_layers", "word_embed_proj_dim"),
)


@pytest.mark.parametrize(("model_type", "key"), KEYS)
def test_a_missing_key_means_what_its_class_takes(model_type: str, key: str, tmp_path: Path) -> None:
    """Read without it, and with what the class takes then; number of heads and widths fit each other."""
    own = next(values for name, values in CASES.values() if name == model_type)
    defaults = transformers.AutoConfig.for_model(model_type).to_dict()
    values = models.config_of(model_type, own).to_dict()
    if key in SIZES:
        values |= {name: defaults[name] for name in SIZES if name in defaults}
    if "head_dim" not in (field.theirs for field in families.FAMILIES[model_type].fields):
        values.pop("head_dim", None)  # what follows from the others
    section, name = section_of(values, key)
    of_class = section_of(defaults, key)[0][name]
    section.pop(name, None)
    missing = read(tmp_path / "one", values)
    section[name] = of_class
    assert missing == read(tmp_path / "other", values)


def read(folder: Path, values: dict[str, Any]) -> Any:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    architecture = read_architecture(folder)
    return replace(architecture, model=architecture.complete)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "a mixture of experts"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "a model with latent attention"),
        ({"model_type": "gemma3", "vision_config": {"a": 1}, "text_config": {"a": 1}}, "a multimodal model"),
        ({"model_type": "mamba", "state_size": 16}, "a state-space model"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"E-IOP-04 .*it is {reason}.*, which is not supported"):
        read(tmp_path / "folder", values)
