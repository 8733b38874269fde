"""What a class of transformers reads in a config.json, in our words."""

import json
from typing import Any

import transformers

from coca_train.hub.architecture import Architecture

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "smollm3": transformers.SmolLM3Config,
    "gpt_neox": transformers.GPTNeoXConfig,
}
SHAPE = {  # theirs: ours
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tie_embeddings",
}


def reading(values: dict[str, Any]) -> dict[str, Any]:
    """Everything that its configuration object says about the model. Raises whatever the class raises."""
    given = json.loads(json.dumps(values))
    config = CONFIGS[values["model_type"]](**{key: value for key, value in given.items() if key != "model_type"})
    said = {ours: getattr(config, theirs) for theirs, ours in SHAPE.items()}
    rope, neox = config.rope_parameters, values["model_type"] == "gpt_neox"
    width, heads = config.hidden_size // config.num_attention_heads, config.num_attention_heads
    said |= {
        "norm_eps": config.layer_norm_eps if neox else config.rms_norm_eps,
        "n_kv_heads": heads if neox else config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", width),
        "seq_len": config.max_position_embeddings,
        "theta": rope["rope_theta"],
        "rotary_pct": rope.get("partial_rotary_factor", 1.0),
        "bias": {"mlp", "norm"} if neox else {"mlp"} if getattr(config, "mlp_bias", False) else set(),
        "act": {"gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}.get(config.hidden_act, config.hidden_act),
    }
    if getattr(config, "attention_bias", False):
        said["bias"] |= {"qkv", "out"}
    n = config.num_hidden_layers
    if values["model_type"] == "smollm3":
        said["rotated"] = [bool(one) for one in config.no_rope_layers[:n]]
        said["windows"] = [
            config.sliding_window if config.use_sliding_window and kind == "sliding_attention" else None
            for kind in config.layer_types[:n]
        ]
    else:
        said["rotated"], said["windows"] = [True] * n, [getattr(config, "sliding_window", None)] * n
    if neox:
        said["residual"] = "parallel" if config.use_parallel_residual else "sequential"
    return said


def ours(architecture: Architecture) -> dict[str, Any]:
    """The same of what we read."""
    model, kinds = architecture.complete, architecture.layer_types
    said = {ours: getattr(model, ours) for ours in SHAPE.values()}
    rotary = next(kind.position for kind in (*kinds, *architecture.settings.values()) if kind.position.scheme == "rope")
    said |= {
        "norm_eps": model.norm_eps,
        "n_kv_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "seq_len": architecture.seq_len,
        "theta": rotary.rope_scaling.theta,
        "rotary_pct": rotary.rotary_pct,
        "bias": set(model.bias),
        "act": {"swiglu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
        "rotated": [kind.position.scheme == "rope" for kind in kinds],
        "windows": [getattr(kind.attention_pattern, "window", None) for kind in kinds],
    }
    if model.norm == "layernorm":
        said["residual"] = model.residual
    return said
