"""Position interpolation (Chen et al., arXiv 2306.15595): every position divided by s, written as θ_j/s."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import NativeScaling, ScalingReader
from coca_train.positions.rope_scaling import Factor, RopeScaling, Spectrum, base_inv_freq, rounded


def interpolated(theta: float, factor: float, rotary_dim: int) -> Spectrum:
    """Return θ_j/s."""
    return rounded(base_inv_freq(theta, rotary_dim) / factor)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Linear scaling by a fixed factor."""

    name: Literal["linear"]
    factor: Factor

    ROPE_TYPE = "linear"

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return interpolated(self.theta, self.factor, rotary_dim)

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        scaling.single_length()
        return {"theta": scaling.theta, "factor": scaling.factor()}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        return NativeScaling(self.theta, {"rope_type": self.ROPE_TYPE, "factor": self.factor})
