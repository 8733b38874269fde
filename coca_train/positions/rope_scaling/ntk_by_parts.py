"""NTK-by-parts (YaRN, arXiv 2309.00071, Definition 2): fast pairs keep θ_j, slow ones get θ_j/s, a ramp between.

convention `authors` is not this definition but their code of that name, of before the paper: between θ_j/s and θ_j come
NTK-aware frequencies, by a second ramp from 1.25 to 0.75 turns, and its first one is 16 to 2 turns.
"""

import math
from types import MappingProxyType
from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import (
    SAME,
    NativeScaling,
    ScalingReader,
    extended_length,
    length_keys,
    read_yarn,
    write_yarn,
)
from coca_train.positions.rope_scaling import Factor, PartsRamp, Spectrum, by_parts, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(PartsRamp):
    """NTK-by-parts by a fixed factor."""

    name: Literal["ntk_by_parts"]
    factor: Factor

    ROPE_TYPE = "yarn"
    NATIVE = MappingProxyType({"convention": "paper"})

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return rounded(by_parts(self, self.factor, rotary_dim))

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object] | None:
        """Read their YaRN with a temperature of 1; None: its temperature is another one."""
        section, temperature = read_yarn(scaling)
        return section if math.isclose(temperature, 1.0, rel_tol=SAME) else None

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the paper's ramp as what they call llama3, the ramp over indices as their YaRN with a temperature of
        1."""
        if self.convention == "paper":
            ends = {"low_freq_factor": self.beta_slow, "high_freq_factor": self.beta_fast}
            return NativeScaling(
                self.theta, {"rope_type": "llama3", **length_keys(self), **ends}, min_positions=extended_length(self)
            )
        return write_yarn(self, 1.0)
