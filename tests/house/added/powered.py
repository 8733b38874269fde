"""What somebody adds: powers of the frequencies, θ'_j = θ_j^power."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import RopeScaling, Spectrum, base_inv_freq


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Powers of the frequencies."""

    name: Literal["powered"]
    power: Annotated[float, Field(gt=0, description="exponent")]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return Spectrum((base_inv_freq(self.theta, rotary_dim) ** self.power).to(torch.float32), 1.0)
