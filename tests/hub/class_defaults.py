"""What a class of transformers reads in a config.json, in our words."""

import copy
import json
from typing import Any

import torch
import transformers

from coca_train.hub.architecture import Architecture
from coca_train.hub.families import FAMILIES

SHAPE = {  # theirs: ours
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tie_embeddings",
}
EPS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
PARTS = {  # of a bias, by the module that has it
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "query_key_value": "qkv", "o_proj": "out",
    "dense": "out", "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp", "c_fc": "mlp", "c_proj": "mlp",
    "fc1": "mlp", "fc2": "mlp", "dense_h_to_4h": "mlp", "dense_4h_to_h": "mlp", "lm_head": "head",
}  # fmt: skip
NUMBERS = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_multiplier")
CAPS = {"score_cap": "attn_logit_softcapping", "logits_cap": "final_logit_softcapping"}


def built(config: Any) -> Any:
    """The model of a configuration object, without numbers."""
    with torch.device("meta"):
        return getattr(transformers, FAMILIES[config.model_type].transformers_class)(config)


def configuration(values: dict[str, Any]) -> Any:
    """The configuration object of a config.json. Raises whatever the class raises."""
    return transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))


def reading(values: dict[str, Any]) -> dict[str, Any]:
    """Everything that its configuration object says about the model. Raises whatever the class raises."""
    config = configuration(values)
    said = {ours: getattr(config, theirs) for theirs, ours in SHAPE.items()}
    rope, heads = config.rope_parameters, config.num_attention_heads
    activation = getattr(config, "hidden_activation" if config.model_type == "gemma2" else "hidden_act")
    shortened = copy.deepcopy(config)
    shortened.num_hidden_layers, shortened.pad_token_id = 1, None
    biases = [name.split(".")[-2] for name, _ in built(shortened).named_parameters() if name.endswith(".bias")]
    n = config.num_hidden_layers
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * n
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    rotated = [True] * n
    if config.model_type == "smollm3":
        rotated = [bool(one) for one in config.no_rope_layers[:n]]
    elif config.model_type == "cohere2":
        rotated = [kind == "sliding_attention" for kind in types]
    return (
        said
        | {
            "norm_eps": next(
                (getattr(config, key) for key in EPS if hasattr(config, key)), 1e-5
            ),  # as OLMo's class has it
            "n_kv_heads": getattr(config, "num_key_value_heads", heads),
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
            "seq_len": config.max_position_embeddings,
            "theta": rope["rope_theta"],
            "rotary_pct": rope.get("partial_rotary_factor", 1.0),
            "bias": {PARTS.get(name, "norm") for name in biases},
            "act": {"gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}.get(activation, activation),
            "rotated": rotated,
            "windows": [window if kind == "sliding_attention" else None for kind in types[:n]],
            "residual": "parallel" if getattr(config, "use_parallel_residual", False) else "sequential",
            **multipliers(config),
            **{ours: getattr(config, theirs, None) for ours, theirs in CAPS.items()},
        }
    )


def multipliers(config: Any) -> dict[str, float | None]:
    """Of scores, embeddings, branches and logits."""
    if config.model_type == "granite":
        return {
            "attention_multiplier": config.attention_multiplier,
            "embedding_multiplier": config.embedding_multiplier,
            "residual_multiplier": config.residual_multiplier,
            "logits_multiplier": 1 / config.logits_scaling,
        }
    is_gemma = config.model_type.startswith("gemma")
    scalar = getattr(config, "query_pre_attn_scalar", None)
    return {
        "attention_multiplier": None if scalar is None else scalar**-0.5,
        "embedding_multiplier": config.hidden_size**0.5 if is_gemma else 1.0,
        "residual_multiplier": 1.0,
        "logits_multiplier": getattr(config, "logit_scale", 1.0),
    }


def ours(architecture: Architecture) -> dict[str, Any]:
    """The same of what we read."""
    model, kinds = architecture.complete, architecture.layer_types
    rotary = next(kind.position for kind in (*kinds, *architecture.settings.values()) if kind.position.scheme == "rope")
    return {ours: getattr(model, ours) for ours in (*SHAPE.values(), *NUMBERS, *CAPS)} | {
        "norm_eps": model.norm_eps,
        "n_kv_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "seq_len": architecture.seq_len,
        "theta": rotary.rope_scaling.theta,
        "rotary_pct": rotary.rotary_pct,
        "bias": set(model.bias),
        "act": {"swiglu": "silu", "gelu_tanh": "gelu_new", "geglu_tanh": "gelu_new", "geglu": "gelu"}.get(
            model.activation, model.activation
        ),
        "rotated": [kind.position.scheme == "rope" for kind in kinds],
        "windows": [getattr(kind.attention_pattern, "window", None) for kind in kinds],
        "residual": "parallel" if model.residual == "parallel" else "sequential",
    }
