"""A T of half width as one of full width, whose halves the model averages: the half, twice."""

from dataclasses import replace

import torch
from torch import Tensor

from coca_train.config.schema import StartConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.conversions import EVERYWHERE
from coca_train.hub.weights import KEYS, Source

EQUAL = EVERYWHERE


def leads(before: Architecture, after: Architecture) -> bool:
    widths = tuple(getattr(architecture.position, "t_width", "") for architecture in (before, after))
    return widths == ("half", "full_mean")


def converted(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    settings = replace(source.architecture.position, t_width="full_mean")
    architecture = replace(source.architecture, position=settings)

    def read(name: str) -> Tensor:
        tensor = source.read(name)
        if not name.endswith(KEYS):
            return tensor
        half = tensor.unflatten(0, (architecture.n_kv_heads, 1, -1))
        return torch.cat((half, half), 1).flatten(0, 2)

    return replace(
        source, architecture=architecture, shapes=architecture.shapes(), read=read,
        origin=source.origin | {"t_width": "half, twice"},
    )  # fmt: skip
