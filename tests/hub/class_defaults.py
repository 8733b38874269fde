"""What a class of transformers reads in a config.json, in our words."""

import copy
import json
from typing import Any

import torch
import transformers

from coca_train.hub.architecture import Architecture
from coca_train.hub.families import FAMILIES
from coca_train.hub.layer_rules import FULL, SLIDING, has_window

SHAPE = {  # theirs, in the order in which they are looked for: ours
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "ffn_dim": "d_ff",
    "ffn_hidden_size": "d_ff",
    "n_inner": "d_ff",
    "initializer_range": "init_std",
    "init_std": "init_std",
    "tie_word_embeddings": "tie_embeddings",
    "rms_norm_eps": "norm_eps",
    "layer_norm_eps": "norm_eps",
    "norm_epsilon": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    "max_position_embeddings": "seq_len",
    "seq_length": "seq_len",
    "max_seq_len": "seq_len",
    "clip_qkv": "clip_qkv",
}
FIXED = {"norm_eps": 1e-5, "seq_len": 2048}  # of classes without a key of it (OLMo and OPT; BLOOM)
ACTIVATION_KEYS = ("hidden_activation", "hidden_act", "activation_function", "activation")
ACTIVATIONS = {"bloom": "gelu_new", "mpt": "gelu"}  # of classes without one
SCHEMES = {"gpt2": "learned", "gpt_bigcode": "learned", "opt": "learned", "bloom": "alibi", "mpt": "alibi"}
PARTS = {  # of a bias, by the module that has it
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "query_key_value": "qkv", "c_attn": "qkv",
    "o_proj": "out", "out_proj": "out", "self_attn.dense": "out", "attention.dense": "out",
    "self_attention.dense": "out", "attn.c_proj": "out", "gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp",
    "c_fc": "mlp", "mlp.c_proj": "mlp", "fc1": "mlp", "fc2": "mlp", "dense_h_to_4h": "mlp", "dense_4h_to_h": "mlp",
    "lm_head": "head",
}  # fmt: skip
NUMBERS = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_multiplier")


def built(config: Any) -> Any:
    """The model of a configuration object, without numbers."""
    with torch.device("meta"):
        return getattr(transformers, FAMILIES[config.model_type].transformers_class)(config)


def configuration(values: dict[str, Any]) -> Any:
    """The configuration object of a config.json. Raises whatever the class raises."""
    if values["model_type"] == "internlm3":  # no class: LLaMA's, whose defaults are others
        of_family = {field.theirs: field.default for field in FAMILIES["internlm3"].fields}
        values = of_family | {"max_position_embeddings": 32768} | values | {"model_type": "llama"}
    return transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))


def reading(values: dict[str, Any]) -> dict[str, Any]:
    """Everything that its configuration object says about the model. Raises whatever the class raises."""
    config = configuration(values)
    found = {theirs: ours for theirs, ours in reversed(SHAPE.items()) if hasattr(config, theirs)}
    said = FIXED | {ours: getattr(config, theirs) for theirs, ours in found.items()}
    n, heads, kind = config.num_hidden_layers, config.num_attention_heads, config.model_type
    activation = next((getattr(config, key) for key in ACTIVATION_KEYS if hasattr(config, key)), ACTIVATIONS.get(kind))
    shortened = copy.deepcopy(config)
    shortened.num_hidden_layers, shortened.pad_token_id = 1, None
    model = built(shortened)
    biases = [name.split(".")[-3:-1] for name, _ in model.named_parameters() if name.endswith(".bias")]
    types = getattr(config, "layer_types", None) or [SLIDING] * n
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    windows = [window if each == SLIDING else None for each in types[:n]]
    schemes = [SCHEMES.get(kind, "rope")] * n
    if kind == "smollm3":
        schemes = ["rope" if one else "nope" for one in config.no_rope_layers[:n]]
    elif kind == "cohere2" or (kind == "exaone4" and window is not None):
        schemes = ["rope" if each == SLIDING else "nope" for each in types]
    turned = any(size is not None and scheme == "rope" for size, scheme in zip(windows, schemes, strict=True))
    rope = getattr(config, "rope_parameters", None) or {}
    of_whole, of_windows = rope.get(FULL, rope), rope.get(SLIDING, rope)
    return {
        "clip_qkv": getattr(getattr(config, "attn_config", None), "clip_qkv", None),
        **said,
        "d_ff": said.get("d_ff") or 4 * config.hidden_size,
        "n_kv_heads": kv_heads(config),
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "theta": of_whole.get("rope_theta"),
        "theta_of_windows": of_windows.get("rope_theta") if turned else None,
        "rotary_pct": of_whole.get("partial_rotary_factor", 1.0) if rope else None,
        "bias": {PARTS.get(".".join(names)) or PARTS.get(names[-1], "norm") for names in biases},
        "act": {"gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}.get(activation, activation),
        "schemes": schemes,
        "windows": windows,
        "residual": "parallel" if has_two_branches(model.config) else "sequential",
        **multipliers(config),
        "score_cap": config.attn_logit_softcapping if kind == "gemma2" else None,
        "logits_cap": getattr(config, "final_logit_softcapping", None),
    }


def kv_heads(config: Any) -> int:
    """Their number."""
    heads = config.num_attention_heads
    if config.model_type == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    return getattr(config, "num_key_value_heads", heads)


def has_two_branches(config: Any) -> bool:
    """Whether each of both branches of a layer has a norm of its own, of the layer's input."""
    return getattr(config, "use_parallel_residual", False) or getattr(config, "num_ln_in_parallel_attn", None) == 2


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
        "logits_multiplier": getattr(config, "logit_scale", None) or 1.0,
    }


def ours(architecture: Architecture) -> dict[str, Any]:
    """The same of what we read."""
    model, kinds, position = architecture.complete, architecture.layer_types, architecture.position
    rotary = position if position.scheme == "rope" else None
    windows = [getattr(kind.attention_pattern, "window", None) for kind in kinds]
    turned = [kind.position for kind in kinds if has_window(kind) and kind.position.scheme == "rope"]
    named = {*SHAPE.values(), *NUMBERS, "norm_eps", "n_kv_heads", "head_dim", "score_cap", "logits_cap"} - {"seq_len"}
    return {name: getattr(model, name) for name in named} | {
        "seq_len": architecture.seq_len,
        "theta": rotary and rotary.rope_scaling.theta,
        "theta_of_windows": turned[0].rope_scaling.theta if turned else None,
        "rotary_pct": rotary and rotary.rotary_pct,
        "bias": set(model.bias),
        "act": {"swiglu": "silu", "gelu_tanh": "gelu_new", "geglu_tanh": "gelu_new", "geglu": "gelu"}.get(
            model.activation, model.activation
        ),
        "schemes": [kind.position.scheme for kind in kinds],
        "windows": windows,
        "residual": "parallel" if model.residual == "parallel" else "sequential",
    }
