"""What models have that are not read here, part by part: the reason in an error."""

from typing import Any


def uncovered(values: dict[str, Any]) -> list[str]:
    """What a model of this config.json has and ours have not; empty: nothing is known about its family."""
    family = str(values.get("model_type")).removesuffix("_text")
    inner = values.get("text_config")  # where there are images beside the text
    text: dict[str, Any] = inner if isinstance(inner, dict) else values
    missing = UNCOVERED[family](text) if family in UNCOVERED else list(PARTS.get(family, ()))
    return [*missing, *(["a vision tower"] if missing and text is not values else [])]


def _gemma3(text: dict[str, Any]) -> list[str]:
    """Covered are its layers: five windows to one global, two thetas, and queries and keys normalised by head."""
    scalar, width = text.get("query_pre_attn_scalar", 256), text.get("head_dim", 256)
    capped = [f"{key}={text[key]}" for key in ("attn_logit_softcapping", "final_logit_softcapping") if text.get(key)]
    return [
        "normalisation behind attention and feed-forward (post_attention_layernorm, post_feedforward_layernorm)",
        "norms that multiply by 1 + weight",
        "embeddings times the root of hidden_size",
        "a feed-forward layer gated by gelu_pytorch_tanh",
        *[f"scores over the root of query_pre_attn_scalar={scalar}, which is not head_dim={width}"] * (scalar != width),
        *capped,
        *["attention in both directions"] * bool(text.get("use_bidirectional_attention")),
    ]


def _llama4(text: dict[str, Any]) -> list[str]:
    """Covered are its layers: chunks, every fourth without positions, and scores that grow there."""
    missing = ["a mixture of experts (num_local_experts)", "features rotated as pairs 2j and 2j + 1"]
    behind = "normalisation of queries and keys behind the rotation (use_qk_norm)"
    return missing + [behind] * bool(text.get("use_qk_norm", True))


UNCOVERED = {"gemma3": _gemma3, "llama4": _llama4}

FUSED = "projections that are one tensor"
NORM = "norms that multiply by 1 + weight"
PARTS: dict[str, tuple[str, ...]] = {
    "cohere": ("attention and feed-forward beside each other with one norm", "logits times logit_scale"),
    "cohere2": ("attention and feed-forward beside each other with one norm", "logits times logit_scale"),
    "falcon": (f"{FUSED}, for one key head", "attention and feed-forward beside each other"),
    "gemma": (NORM, "embeddings times the root of hidden_size", "a feed-forward layer gated by GELU"),
    "gemma2": (NORM, "norms after attention and feed-forward", "scores and logits that are capped"),
    "glm4": ("norms after attention and feed-forward", "features rotated as pairs 2j and 2j + 1"),
    "gpt2": ("learned positions with LayerNorm, in transposed projections",),
    "gptj": ("attention and feed-forward beside each other with one norm", "features rotated as pairs 2j and 2j + 1"),
    "granite": (
        "embedding_multiplier, attention_multiplier, residual_multiplier and logits_scaling, which scale its parts",
    ),
    "ministral": ("windows in some of its layers",),
    "mixtral": ("a mixture of experts (num_local_experts)",),
    "olmo": ("norms without weights", "queries, keys and values that are clipped"),
    "olmo2": ("norms after attention and feed-forward", "norms of queries and keys over all heads"),
    "opt": ("learned positions with LayerNorm",),
    "phi": (f"{FUSED} or biases everywhere", "attention and feed-forward beside each other with one norm"),
    "phi3": (f"{FUSED} (qkv_proj, gate_up_proj)",),
    "qwen2": ("biases in the query, key and value projections only",),
    "qwen3": ("norms of queries and keys, head by head",),
    "qwen3_moe": ("a mixture of experts (num_experts)",),
    "stablelm": ("LayerNorm with a gated feed-forward layer",),
    "starcoder2": ("biases everywhere with LayerNorm, and a feed-forward layer without a gate",),
}
