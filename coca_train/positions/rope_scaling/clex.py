"""CLEX: frequencies that follow learned dynamics in the length (Chen et al., arXiv 2310.16450).

With t = length / L and θ_ntk(t) the NTK-aware frequencies for s = 2t - 1, z = log θ obeys

    dz/dt = SiLU((z + log θ_ntk(t)) W_up) W_down + ξ_t,   ξ_t = d log θ_ntk(t) / dt,   z(1) = log θ.

This is the authors' code (DAMO-NLP-SG/CLEX), which the released models come from; in the paper's equation
the learned part sees z alone. ξ_t is a known derivative, so it is integrated analytically: u = z - log θ_ntk obeys
du/dt = SiLU((u + 2 log θ_ntk(t)) W_up) W_down with u(1) = 0. Hence t = 1 is plain RoPE and W_down = 0, where
training starts, is NTK-aware scaling, both without an error of integration.

W_down is held times its hidden width F. Adam moves every number by about lr a step, whatever its gradient, and
F of them add up in each frequency; at lr 1e-3 that sped pairs up ten thousandfold within 70 steps (t = 16).
Held so, the speed does not depend on F. The functions that can be learned are the same.

Evaluation: t = ceil(length / L), at most max_factor; so every length up to L sees plain RoPE. Beyond L·max_factor t
stays at max_factor, in training and evaluation, and a warning says so once.
Training: every forward draws t from 1 … max_factor and puts the tokens at increasing random positions
in [0, t·L), first and last included: short sequences train the dynamics far beyond their length. The
draw is torch's own generator, which the training loop seeds by (seed, step, rank).

Shape legend: J pairs, F hidden features of the learned part, N tokens.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import Initial
from coca_train.positions.rope_scaling import OriginalSeqLen, RopeScaling, Spectrum, base_inv_freq, ntk_theta
from coca_train.runtime import dist


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Learned scaling by the sequence length."""

    name: Literal["clex"]
    original_seq_len: OriginalSeqLen
    max_factor: Annotated[int, Field(ge=1, description="largest t = length / L trained for and used")]
    param_factor: Annotated[int, Field(ge=1, description="width of the learned part, in rotated features of a head")]
    ode_step: Annotated[float, Field(gt=0, description="step of the Runge-Kutta integration over t")]

    learned = True
    # As in the authors' code: W_up as nn.Linear's default start, W_down zero.
    INITIAL: ClassVar[Mapping[str, Initial]] = {
        "up": lambda w, g: w.uniform_(-(w.shape[1] ** -0.5), w.shape[1] ** -0.5, generator=g),
        "down": lambda w, g: w.zero_(),
    }

    def build(self, rotary_dim: int) -> "Learned":
        return Learned(self, rotary_dim)


class Learned(nn.Module):
    """The learned dynamics. In eval mode a pure function of (parameters, length)."""

    def __init__(self, settings: Settings, rotary_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.rotary_dim = rotary_dim
        hidden = settings.param_factor * rotary_dim
        self.up = nn.Parameter(torch.empty(rotary_dim // 2, hidden))
        self.down = nn.Parameter(torch.empty(hidden, rotary_dim // 2))

    def forward(self, length: int) -> Spectrum:
        """Return the spectrum at a sequence length [tokens]; in training, positions must lie below it."""
        original, most = self.settings.original_seq_len, self.settings.max_factor
        if length > original * most:
            _warn_of_end(original, most)
        if self.training:
            factor = int(torch.randint(1, most + 1, ()))
            shrink = max(1, length // original)
            positions_N, end = spread(length, factor, self.up.device) / shrink, (length * factor - 1) / shrink
        else:
            factor, positions_N, end = max(1, min(math.ceil(length / original), most)), None, 0.0
        theta = ntk_theta(self.settings.theta, 2 * factor - 1, self.rotary_dim)
        ntk_J = base_inv_freq(theta, self.rotary_dim, self.up.device).to(torch.float32)
        return Spectrum(ntk_J * self.departure(factor).exp().to(torch.float32), 1.0, positions_N, end)

    def departure(self, factor: float) -> Tensor:
        """Return u_J at t = factor: how far log θ has departed from the NTK-aware one. Float32 or wider, whatever the
        weights are.

        Classic fourth-order Runge-Kutta. At t = 1 there is one step of width 0, so that the parameters have a gradient
        in every forward: ranks that drew different t must reduce the same gradients.
        """
        wide = torch.promote_types(self.up.dtype, torch.float32)
        up_JF, down_FJ = self.up.to(wide), self.down.to(wide) / self.down.shape[0]
        device = self.up.device
        log_theta_J = base_inv_freq(self.settings.theta, self.rotary_dim, device).log().to(up_JF)
        pace_J = torch.arange(0, self.rotary_dim, 2, device=device).to(up_JF) / (self.rotary_dim - 2)

        def slope_J(t: float, u_J: Tensor) -> Tensor:
            log_ntk_J = log_theta_J - pace_J * math.log(2 * t - 1)
            return nn.functional.silu((u_J + 2 * log_ntk_J) @ up_JF) @ down_FJ

        steps = max(1, math.ceil((factor - 1) / self.settings.ode_step))
        width = (factor - 1) / steps
        u_J = torch.zeros_like(log_theta_J)
        for step in range(steps):
            t = 1 + step * width
            k1_J = slope_J(t, u_J)
            k2_J = slope_J(t + width / 2, u_J + k1_J * (width / 2))
            k3_J = slope_J(t + width / 2, u_J + k2_J * (width / 2))
            k4_J = slope_J(t + width, u_J + k3_J * width)
            u_J = u_J + (k1_J + 2 * k2_J + 2 * k3_J + k4_J) * (width / 6)
        return u_J


@cache  # once is enough
def _warn_of_end(original: int, most: int) -> None:
    dist.log(
        f"WARNING: clex: a text has more than {original:,} x {most} tokens (original_seq_len x max_factor); the "
        f"frequencies of longer ones were never trained for, and stay those of {original * most:,}"
    )


def spread(length: int, factor: int, device: torch.device | None = None) -> Tensor:
    """Draw positions_N: `length` different integers below length·factor, increasing, both ends included."""
    end = length * factor - 1
    inner = torch.randperm(max(0, end - 1), device=device)[: max(0, length - 2)].sort().values + 1
    return torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), end)))[:length].to(torch.float32)
