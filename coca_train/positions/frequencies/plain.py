"""RoPE as published (RoFormer, arXiv 2104.09864): θ_j = theta^(-2j/D). A larger theta is the Code Llama form."""

from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared
from coca_train.positions.hugging_face import Scaling, Words


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Unscaled rotary frequencies."""

    name: Literal["plain"]
    theta: _shared.Theta


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """Independent of `length` [tokens]."""
    inv_freq_J = _shared.base_frequencies(settings.theta, rotary_dim)
    return Spectrum(inv_freq_J.to(torch.float32), 1.0)


ROPE_TYPE = "default"


def from_transformers(scaling: Scaling) -> dict[str, Any]:
    """Nothing but a base; a factor of 1 says nothing."""
    scaling.only_length()
    scaling.no_factor()
    return {"theta": scaling.theta}


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """A base."""
    return Words(settings.theta)
