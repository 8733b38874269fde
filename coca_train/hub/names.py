"""Parameter names: ours, and where each lies in a folder of the Hugging Face world (hub/families.py has theirs).

No permutation of rows: transformers' q_proj and k_proj already pair feature j with j + D/2 (its converter from
Meta's files did that), and so do we. GPT-NeoX holds query, key and value in one tensor, head by head.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.hub.architecture import Architecture, Shapes

OWN_PREFIX = "model."  # of model_type coca_train: its class holds our decoder under this name
PARTS = ("attention.q", "attention.k", "attention.v")  # the order inside a fused tensor


class Place(NamedTuple):
    """Where a parameter of ours lies: their tensor, and which part of it. part None: all of it."""

    tensor: str
    part: int | None


def places(names: Iterable[str], table: Mapping[str, str]) -> dict[str, Place]:
    """Our parameter names -> where each lies."""
    return {name: _place(name, table) for name in names}


def own_places(names: Iterable[str]) -> dict[str, Place]:
    """The same of model_type coca_train."""
    return {name: Place(OWN_PREFIX + name, None) for name in names}


def _place(name: str, table: Mapping[str, str]) -> Place:
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


def whole_shapes(holds: dict[str, list[str]], shapes: Shapes) -> Shapes:
    """The shape of each of their tensors. holds: by `contents`. shapes: by our names."""
    first = {tensor: shapes[parts[0]] for tensor, parts in holds.items()}
    return {tensor: (rows * len(holds[tensor]), *rest) for tensor, (rows, *rest) in first.items()}


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
