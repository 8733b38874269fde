"""RoPE as published (RoFormer, arXiv 2104.09864): θ_j = theta^(-2j/D). A larger theta is the Code Llama form."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import NativeScaling, ScalingReader
from coca_train.positions.rope_scaling import RopeScaling, Spectrum, base_inv_freq, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Unscaled rotary frequencies."""

    name: Literal["plain"]

    ROPE_TYPE = "default"

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return rounded(base_inv_freq(self.theta, rotary_dim))

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        """Read a base without a factor."""
        scaling.single_length()
        scaling.refuse_factor()
        return {"theta": scaling.theta}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        return NativeScaling(self.theta)
