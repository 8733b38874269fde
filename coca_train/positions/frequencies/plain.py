"""RoPE as published (RoFormer, arXiv 2104.09864): θ_j = theta^(-2j/D). A larger theta is the Code Llama form."""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Unscaled rotary frequencies."""

    name: Literal["plain"]
    theta: _shared.Theta


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """Independent of `length` [tokens]."""
    inv_freq_J = _shared.base_frequencies(settings.theta, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), 1.0)
