"""Learned frequencies (CLEX) with weights of a chosen size."""

import torch

from coca_train.positions.rope_scaling import clex
from tests.positions import support


def build(rotary_dim=8, size=0.1, seed=0, **changes):
    """A module in eval mode with random W_up and W_down, N(0, size), float64."""
    settings = clex.Settings(**support.scaling("clex", **changes))
    return fill(settings.build(rotary_dim).double().eval(), size, seed)


def fill(module, size=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in (module.up, module.down):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(drawn * size)
    module.down.data *= module.down.shape[0]
    return module


def w_down(module):
    """It is held times its hidden width."""
    return module.down / module.down.shape[0]
