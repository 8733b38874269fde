"""NTK-by-parts with s(l) = max(1, l/L) of the sequence in hand (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """NTK-by-parts by the length in hand."""

    name: Literal["dynamic_ntk_by_parts"]
    theta: _shared.Theta
    original_seq_len: _shared.OriginalSeqLen
    beta_fast: _shared.BetaFast
    beta_slow: _shared.BetaSlow
    convention: _shared.ConventionField

    def __post_init__(self) -> None:
        _shared.check_ramp(self)


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """length: the sequence in hand, l [tokens]."""
    factor = _shared.dynamic_factor(length, settings.original_seq_len)
    inv_freq_J = _shared.by_parts(settings, factor, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), 1.0)
