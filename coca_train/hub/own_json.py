"""config.json of the model types that are ours.

coca        one dot product whatever the positions: the two files of hub/export_files/ go with the weights
coca_train  all else (tables over distances, hooks, several views): hub/installed/ loads it, where coca_train is there

Both hold our sections as they are, under `coca_train`, and what transformers wants to know.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from coca_train.hub.architecture import Architecture

OWN = "coca_train"  # the key of our sections
COCA, INSTALLED = "coca", "coca_train"
TYPES = (COCA, INSTALLED)
CONFIGURATION, MODELING = "configuration_coca", "modeling_coca"  # of hub/export_files/
BLOCKS = {COCA: "model.layers", INSTALLED: "model.blocks"}
CLASSES = {COCA: "CocaForCausalLM", INSTALLED: "CocaTrainForCausalLM"}
# What modeling_coca.py computes; tests/hub/test_modeling_coca.py holds this to its configuration.
SCHEMES = ("coca", "rope", "alibi", "nope")
VISIBILITIES = ("causal", "sliding_window")
FREQUENCIES = (
    "plain", "partial", "linear", "ntk", "ntk_by_parts", "yarn", "llama3", "longrope",
    "dynamic_linear", "dynamic_ntk", "dynamic_ntk_by_parts", "dynamic_yarn", "dynamic_yarn_tuned",
)  # fmt: skip
ACTIVATIONS = {"swiglu": ("silu", True), "gelu": ("gelu", False), "gelu_tanh": ("gelu_pytorch_tanh", False)}


def model_type(architecture: Architecture) -> str:
    """Which of the two computes it."""
    return INSTALLED if any(map(_beyond, architecture.kinds)) else COCA


def _beyond(kind: Any) -> bool:
    scaling = getattr(kind.position, "frequencies", None)
    return (
        kind.position.scheme not in SCHEMES
        or kind.visibility.name not in VISIBILITIES
        or (scaling is not None and scaling.name not in FREQUENCIES)
    )


def config(architecture: Architecture) -> dict[str, Any]:
    """The file's values."""
    name, model = model_type(architecture), architecture.complete
    shared = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "vocab_size": architecture.n_rows,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "max_position_embeddings": architecture.seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": True,
        OWN: architecture.sections(),
    }
    return shared if name == INSTALLED else shared | _coca(architecture)


def _coca(architecture: Architecture) -> dict[str, Any]:
    """What modeling_coca.py needs beside that: every kind of layer in full, the shape of the network."""
    model, used = architecture.complete, architecture.layer_kinds
    activation, gated = ACTIVATIONS[model.activation]
    return {
        "layer_kinds": list(used),
        "kinds": {
            name: {part: asdict(settings) for part, settings in kind._asdict().items()}
            for name, kind in architecture.settings.items()
            if name in used
        },
        "auto_map": {
            "AutoConfig": f"{CONFIGURATION}.CocaConfig",
            "AutoModel": f"{MODELING}.CocaModel",
            "AutoModelForCausalLM": f"{MODELING}.CocaForCausalLM",
        },
        "intermediate_size": model.d_ff,
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": activation,
        "gated_mlp": gated,
        "norm": model.norm,
        "norm_eps": model.norm_eps,
        "parallel_residual": model.residual == "parallel",
        "bias": model.bias,
        "qk_norm": model.qk_norm == "head",
        "dropout": model.dropout,
        "initializer_range": model.init_std,
    }


def disagreement(values: Mapping[str, Any], architecture: Architecture) -> str:
    """A key that says something else than our sections do, in words; "": there is none."""
    for key, value in config(architecture).items():
        if key in values and key not in ("architectures", "auto_map", "use_cache", OWN) and values[key] != value:
            return f"{key}={values[key]!r}, where {OWN} says {value!r}"
    return ""
