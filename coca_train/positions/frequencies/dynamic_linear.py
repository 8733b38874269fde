"""Linear scaling with s(l) = max(1, l/L) of the sequence in hand (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Linear scaling by the length in hand."""

    name: Literal["dynamic_linear"]
    theta: _shared.Theta
    original_seq_len: _shared.OriginalSeqLen


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """length: the sequence in hand, l [tokens]."""
    factor = _shared.dynamic_factor(length, settings.original_seq_len)
    inv_freq_J = _shared.base_frequencies(settings.theta, rotary_dim) / factor
    return Spectrum(inv_freq_J.to(torch.float32), 1.0)
