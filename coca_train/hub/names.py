"""Parameter names: ours, and those of LLaMA, Mistral, SmolLM3 and GPT-NeoX in the Hugging Face world.

No permutation of rows: transformers' q_proj and k_proj already pair feature j with j + D/2 (its converter from
Meta's files did that), and so do we. GPT-NeoX holds query, key and value in one tensor, head by head.
"""

from collections.abc import Container, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.hub.architecture import Architecture

LLAMA = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.up_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.down": "mlp.down_proj",
}
NEOX = {
    "embed": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "blocks": "gpt_neox.layers",
    "attention_norm": "input_layernorm",
    "attention.q": "attention.query_key_value",
    "attention.k": "attention.query_key_value",
    "attention.v": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
TABLES = {"llama": LLAMA, "mistral": LLAMA, "smollm3": LLAMA, "gpt_neox": NEOX}
OWN_PREFIX = "model."  # of our own form: the class of transformers holds our decoder under this name
PARTS = ("attention.q", "attention.k", "attention.v")  # the order inside a fused tensor


class Place(NamedTuple):
    """Where a parameter of ours lies: their tensor, and which part of it. part None: all of it."""

    tensor: str
    part: int | None


def places(names: Iterable[str], table: dict[str, str]) -> dict[str, Place]:
    """Our parameter names -> where each lies."""
    return {name: _place(name, table) for name in names}


def own_places(names: Iterable[str], tensors: Container[str]) -> dict[str, Place]:
    """The same of an export in our own form. tensors: of the folder; those of earlier versions have no prefix."""
    prefix = OWN_PREFIX if f"{OWN_PREFIX}embed.weight" in tensors else ""
    return {name: Place(prefix + name, None) for name in names}


def _place(name: str, table: dict[str, str]) -> Place:
    module, _, leaf = name.rpartition(".")
    if not module.startswith("blocks."):
        return Place(f"{table[module]}.{leaf}", None)
    _, layer, inner = module.split(".", 2)
    fused = inner in PARTS and table["attention.q"] == table["attention.k"]
    return Place(f"{table['blocks']}.{layer}.{table[inner]}.{leaf}", PARTS.index(inner) if fused else None)


def contents(places: dict[str, Place]) -> dict[str, list[str]]:
    """Their tensors -> which of our parameters each consists of, in the order of the parts."""
    holds: dict[str, list[str]] = {}
    for name, place in sorted(places.items(), key=lambda item: item[1].part or 0):
        holds.setdefault(place.tensor, []).append(name)
    return holds


def take(tensor: Tensor, place: Place, architecture: Architecture) -> Tensor:
    """Our parameter out of their tensor."""
    if place.part is None:
        return tensor
    by_head = tensor.unflatten(0, (architecture.model.n_heads, len(PARTS), architecture.head_dim))
    return by_head[:, place.part].flatten(0, 1)


def fuse(parts: list[Tensor], architecture: Architecture) -> Tensor:
    """Their tensor out of ours, in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    return torch.stack([part.unflatten(0, (architecture.model.n_heads, -1)) for part in parts], 1).flatten(0, 2)
