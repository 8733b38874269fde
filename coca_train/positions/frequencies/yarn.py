"""YaRN (arXiv 2309.00071, Definition 3): NTK-by-parts and the temperature sqrt(1/t) = 0.1 ln s + 1 on q' and k'."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """YaRN by a fixed factor."""

    name: Literal["yarn"]
    theta: _shared.Theta
    factor: _shared.Factor
    original_seq_len: _shared.OriginalSeqLen
    beta_fast: _shared.BetaFast
    beta_slow: _shared.BetaSlow
    convention: _shared.ConventionField

    def __post_init__(self) -> None:
        _shared.check_ramp(self)


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """Independent of `length` [tokens]."""
    inv_freq_J = _shared.by_parts(settings, settings.factor, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), _shared.yarn_temperature(settings.factor))
