"""What stands in the way of models that are not read here, part by part."""

from typing import Any


def uncovered(values: dict[str, Any]) -> list[str]:
    """What a model of this config.json has and ours have not, part by part, where its family's positions can be written
    here and the rest cannot yet; empty: it is of no such family."""
    family = str(values.get("model_type"))
    inner = values.get("text_config")  # where there are images beside the text
    text: dict[str, Any] = inner if isinstance(inner, dict) else values
    missing = UNCOVERED.get(family.removesuffix("_text"), lambda text: [])(text)
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
