"""Initial weights: every parameter is a pure function of (seed, its name), whatever scheme, engine or world size."""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from coca_train import positions
from coca_train.config.schema import ModelConfig
from coca_train.models.lora import init_adapter, is_adapter

RESIDUAL_OUTPUTS = ("attention.out.weight", "mlp.down.weight")


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@torch.no_grad()
def init_parameter(name: str, parameter: Tensor, model: ModelConfig, position: Any, seed: int) -> None:
    """Fill one parameter in place: norms 1, biases 0, matrices N(0, init_std), a position scheme's as it says, an
    adapter so that it changes nothing yet.

    position: the scheme's settings.

    With init_depth_scaled the two projections that write into the residual stream have their std
    divided by sqrt(2 n_layers) (GPT-2; Radford et al. 2019, section 2.3).
    """
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    own = positions.initials(position).get(name.rpartition(".")[2]) if "position" in name.split(".") else None
    if own is not None:
        values = torch.empty(parameter.shape, dtype=torch.float32)
        own(values, generator)
        parameter.copy_(values)
    elif is_adapter(name):
        init_adapter(name, parameter, generator)
    elif name.endswith("norm.weight"):
        parameter.fill_(1.0)
    elif name.endswith(".bias"):
        parameter.zero_()
    else:
        std = model.init_std
        if model.init_depth_scaled and name.endswith(RESIDUAL_OUTPUTS):
            std /= math.sqrt(2 * model.n_layers)
        values = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        parameter.copy_(values)


def init_weights(module: Any, model: ModelConfig, seed: int) -> None:
    """Initialise every parameter of a Transformer."""
    for name, parameter in module.named_parameters():
        init_parameter(name, parameter, model, module.position.settings, seed)
