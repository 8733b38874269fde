"""Which of transformers' own classes computes what a model of ours computes, and its config.json."""

from typing import Any, Literal

from coca_train.hub import smollm3
from coca_train.hub.architecture import Architecture
from coca_train.hub.transformers_side import CLASSES
from coca_train.positions.hugging_face import NotTheSame, Words, rotation
from coca_train.positions.layers import in_words

Family = Literal["llama", "mistral", "smollm3", "gpt_neox"]


def config(architecture: Architecture, family: str = "") -> dict[str, Any]:
    """The config.json of the native class. family: which, where several would do. Raises NotTheSame, in words.

    The scaling is written as released models have it (rope_theta, rope_scaling), which old and new versions read.
    """
    rotated = rotation(architecture.position, architecture.head_dim)
    if rotated is None:
        raise NotTheSame(f"position scheme {architecture.position.scheme}; native classes have RoPE only")
    reasons = {name: _reasons(architecture, rotated.rotary_pct, name) for name in CLASSES}
    able = [name for name in CLASSES if not reasons[name]]
    if family in reasons and family not in able:
        raise NotTheSame(f"{family}: {'; '.join(reasons[family])}")
    if not able:
        raise NotTheSame("; ".join(f"{name}: {', '.join(reasons[name])}" for name in CLASSES))
    chosen, words = family if family in able else able[0], rotated.words
    if chosen == "gpt_neox":
        fields = _neox(architecture, words) | {"rotary_pct": rotated.rotary_pct}
    else:
        fields = _llama(architecture, chosen, words)
    model = architecture.model
    return {
        "architectures": [CLASSES[chosen]],
        "model_type": chosen,
        "vocab_size": architecture.n_rows,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "intermediate_size": model.d_ff,
        "max_position_embeddings": words.max_positions or architecture.seq_len,
        "rope_scaling": words.scaling,
        "tie_word_embeddings": model.tie_embeddings,
        "initializer_range": model.init_std,
        "use_cache": True,
        **fields,
    }


def _reasons(architecture: Architecture, rotary_pct: float, family: str) -> list[str]:
    """Why a family's class computes something else; empty: it does not."""
    model, visibility = architecture.model, architecture.visibility
    rules = [
        (model.qk_norm == "none", f"qk_norm {model.qk_norm}"),
        (all(kind.logit_scale.name == "none" for kind in architecture.kinds), "scores that grow with the length"),
    ]
    if family == "smollm3":
        rules.append((not (reason := _unlike_smollm3(architecture)), reason))
    else:
        windows = family == "mistral" and visibility.name == "sliding_window"
        rules += [
            (
                len(set(architecture.kinds)) == 1,
                f"layers of several kinds ({in_words(architecture.layers, model.n_layers)})",
            ),
            (visibility.name == "causal" or windows, f"visibility {visibility.name}"),
        ]
    if family == "gpt_neox":
        rules += [
            (model.norm == "layernorm", f"norm {model.norm}"),
            (model.activation in ("gelu", "gelu_tanh"), f"activation {model.activation}"),
            (model.bias, "no biases"),
            (architecture.n_kv_heads == model.n_heads, f"{architecture.n_kv_heads} key/value heads"),
            (architecture.head_dim * model.n_heads == model.d_model, f"head_dim {architecture.head_dim}"),
        ]
    else:
        rules += [
            (model.norm == "rmsnorm", f"norm {model.norm}"),
            (model.activation == "swiglu", f"activation {model.activation}"),
            (model.residual == "sequential", f"residual {model.residual}"),
            (rotary_pct == 1, f"rotary_pct {rotary_pct:g}"),
            (family != "mistral" or not model.bias, "biases"),
            (model.d_model % model.n_heads == 0, f"d_model {model.d_model} with {model.n_heads} heads"),
        ]
    return [reason for holds, reason in rules if not holds]


def _unlike_smollm3(architecture: Architecture) -> str:
    """What of the layers SmolLM3 has not; empty: it has all."""
    try:
        smollm3.words(architecture)
    except NotTheSame as error:
        return str(error)
    return ""


def _llama(architecture: Architecture, family: str, words: Words) -> dict[str, Any]:
    model, window = architecture.model, getattr(architecture.visibility, "window", None)
    own = {"sliding_window": window} if family == "mistral" else {"attention_bias": model.bias, "mlp_bias": model.bias}
    if family == "smollm3":
        own |= smollm3.words(architecture) | {"pad_token_id": None}  # its default is a row that only the original has
    return {
        "num_key_value_heads": architecture.n_kv_heads,
        "head_dim": architecture.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": words.theta,
        **own,
    }


def _neox(architecture: Architecture, words: Words) -> dict[str, Any]:
    model = architecture.model
    return {
        "hidden_act": {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}[model.activation],
        "layer_norm_eps": model.norm_eps,
        "use_parallel_residual": model.residual == "parallel",
        "attention_bias": True,
        "rotary_emb_base": words.theta,
    }
