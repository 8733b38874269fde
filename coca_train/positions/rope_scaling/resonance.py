"""Resonance RoPE (Wang et al., arXiv 2403.00071): every wavelength is a whole number of tokens.

λ_j = round(2π/θ_j), θ'_j = 2π/λ_j: positions λ_j apart then have one angle to the last bit, and of a pair that turns
within the training window every angle that comes later was trained. With `factor` above 1 the θ_j are YaRN's, and its
temperature applies; with 1 they are RoPE's own.
"""

import math
from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import Factor, Spectrum, YarnRamp, by_parts, yarn_temperature


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(YarnRamp):
    """Wavelengths of whole tokens."""

    name: Literal["resonance"]
    factor: Factor

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies, which do not depend on `length` [tokens], and the periods."""
        period_J = (2 * math.pi / by_parts(self, self.factor, rotary_dim)).round().to(torch.int64)
        return Spectrum((2 * math.pi / period_J.double()).float(), yarn_temperature(self.factor), period_J=period_J)
