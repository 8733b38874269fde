"""NTK-by-parts (YaRN, arXiv 2309.00071, Definition 2): fast pairs keep θ_j, slow ones get θ_j/s, a ramp between."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(_shared.Ramp):
    """NTK-by-parts by a fixed factor."""

    name: Literal["ntk_by_parts"]
    factor: _shared.Factor


def scaled(settings: _shared.Ramp, rotary_dim: int, factor: float) -> Spectrum:
    """The fields of the ramp and any factor s."""
    inv_freq_J = _shared.by_parts(settings, factor, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), 1.0)


spectrum = _shared.fixed(scaled)
