"""YaRN (arXiv 2309.00071, Definition 3): NTK-by-parts and the temperature sqrt(1/t) = 0.1 ln s + 1 on q' and k'."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(_shared.Ramp):
    """YaRN by a fixed factor."""

    name: Literal["yarn"]
    factor: _shared.Factor


def scaled(settings: _shared.Ramp, rotary_dim: int, factor: float) -> Spectrum:
    """The fields of the ramp and any factor s."""
    inv_freq_J = _shared.by_parts(settings, factor, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), _shared.yarn_temperature(factor))


spectrum = _shared.fixed(scaled)
