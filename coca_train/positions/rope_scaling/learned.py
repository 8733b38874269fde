"""Learned frequencies (GRAPE-M without context; Zhang et al., arXiv 2512.07805): θ_j = base^(-2j/D)·exp(u_j).

u is learned, shared by all layers, and starts at 0, where the frequencies are RoPE's.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import Initial
from coca_train.positions.rope_scaling import RopeScaling, Spectrum, base_inv_freq


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """A learned factor for every pair."""

    name: Literal["learned"]

    learned = True
    INITIAL: ClassVar[Mapping[str, Initial]] = {"u": lambda u_J, generator: u_J.zero_()}

    def build(self, rotary_dim: int) -> "Learned":
        return Learned(self, rotary_dim)


class Learned(nn.Module):
    """The logarithms of the factors."""

    def __init__(self, settings: Settings, rotary_dim: int) -> None:
        super().__init__()
        self.settings, self.rotary_dim = settings, rotary_dim
        self.u = nn.Parameter(torch.empty(rotary_dim // 2))

    def forward(self, length: int) -> Spectrum:
        """Return the spectrum, the same at every length; computed in float64 and rounded once."""
        theta_J = base_inv_freq(self.settings.theta, self.rotary_dim, self.u.device)
        return Spectrum((theta_J * self.u.double().exp()).float(), 1.0)
