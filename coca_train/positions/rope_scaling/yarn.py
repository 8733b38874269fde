"""YaRN (arXiv 2309.00071, Definition 3): NTK-by-parts and the temperature sqrt(1/t) = 0.1 ln s + 1 on q' and k'.

Or a stated temperature, as released models have (DeepSeek's two mscales, transformers' attention_factor).
"""

import math
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import SAME, NativeScaling, ScalingReader, read_yarn, write_yarn
from coca_train.positions.rope_scaling import (
    Factor,
    Spectrum,
    Temperature,
    YarnRamp,
    by_parts,
    rounded,
    yarn_temperature,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(YarnRamp):
    """YaRN by a fixed factor."""

    name: Literal["yarn"]
    factor: Factor
    temperature: Annotated[
        Temperature, Field(description="multiplied into queries and keys; null: 0.1 ln factor + 1")
    ] = None

    ROPE_TYPE = "yarn"
    NATIVE = MappingProxyType({"convention": "code"})

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return rounded(by_parts(self, self.factor, rotary_dim), self._temperature())

    def _temperature(self) -> float:
        return yarn_temperature(self.factor) if self.temperature is None else self.temperature

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object] | None:
        """Read the authors' ramp and the temperature; None where that is 1, which is NTK-by-parts."""
        section, temperature = read_yarn(scaling)
        if math.isclose(temperature, 1.0, rel_tol=SAME):
            return None
        factor = section["factor"]
        assert isinstance(factor, float)
        usual = math.isclose(temperature, yarn_temperature(factor), rel_tol=SAME)
        return section | {"temperature": None if usual else temperature}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the ramp; theirs is the authors'."""
        return write_yarn(self, self._temperature())
