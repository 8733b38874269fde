"""YaRN (arXiv 2309.00071, Definition 3): NTK-by-parts and the temperature sqrt(1/t) = 0.1 ln s + 1 on q' and k'."""

import math
from types import MappingProxyType
from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import (
    SAME,
    NativeScaling,
    NotTheSame,
    ScalingReader,
    read_yarn,
    refuse_partial_rotation,
    write_yarn,
)
from coca_train.positions.rope_scaling import Factor, Spectrum, YarnRamp, yarn_spectrum, yarn_temperature


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(YarnRamp):
    """YaRN by a fixed factor."""

    name: Literal["yarn"]
    factor: Factor

    ROPE_TYPE = "yarn"
    NATIVE = MappingProxyType({"convention": "code"})

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return yarn_spectrum(self, self.factor, rotary_dim)

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object] | None:
        """Read the authors' ramp with YaRN's temperature; None where the temperature is 1, which is NTK-by-parts."""
        section, temperature = read_yarn(scaling)
        if math.isclose(temperature, 1.0, rel_tol=SAME):
            return None
        factor = section["factor"]
        assert isinstance(factor, float)
        if not math.isclose(temperature, yarn_temperature(factor), rel_tol=SAME):
            raise NotTheSame(f"an attention factor of {temperature:g}, where YaRN's is 0.1 ln(factor) + 1")
        refuse_partial_rotation("yarn", scaling.rotary_pct)
        return section

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the ramp; theirs is the authors'."""
        refuse_partial_rotation("yarn", rotary_pct)
        return write_yarn(self, yarn_temperature(self.factor))
