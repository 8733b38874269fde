"""NTK-aware scaling (YaRN, arXiv 2309.00071, Definition 1): the base grows by s^(D/(D-2))."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import NativeScaling
from coca_train.positions.rope_scaling import Factor, RopeScaling, Spectrum, base_inv_freq, ntk_theta, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """NTK-aware scaling by a fixed factor."""

    name: Literal["ntk"]
    factor: Factor

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return rounded(base_inv_freq(ntk_theta(self.theta, self.factor, rotary_dim), rotary_dim))

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the base that it comes to; transformers has no rope_type for it."""
        return NativeScaling(ntk_theta(self.theta, self.factor, rotary_dim))
