"""What somebody adds: powers of the frequencies, θ'_j = θ_j^power."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Powers of the frequencies."""

    name: Literal["powered"]
    theta: _shared.Theta
    power: Annotated[float, Field(gt=0, description="exponent")]


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """Independent of `length` [tokens]."""
    return Spectrum((_shared.base_frequencies(settings.theta, rotary_dim) ** settings.power).to(torch.float32), 1.0)
