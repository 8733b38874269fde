"""Llama 3.1's scaling ("llama3" in the `transformers` library): NTK-by-parts under other names.

Its smooth factor (L/λ_j - low)/(high - low), λ_j = 2π/θ_j, is the YaRN paper's ramp over turns
(arXiv 2309.00071, Definition 2) with beta_slow = low_freq_factor and beta_fast = high_freq_factor; there
is no temperature. Llama 3.1 itself: theta 500 000, factor 8, low 1, high 4, original_seq_len 8192.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import NativeScaling, NotTheSame, ScalingReader, extended_length, length_keys
from coca_train.positions.rope_scaling import Factor, OriginalSeqLen, RopeScaling, Spectrum, Turns, by_turns, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """The scaling of Llama 3.1 by a fixed factor."""

    name: Literal["llama3"]
    factor: Factor
    original_seq_len: OriginalSeqLen
    low_freq_factor: Annotated[
        float, Field(gt=0, description="wavelengths over L/low_freq_factor are interpolated fully")
    ]
    high_freq_factor: Annotated[float, Field(gt=0, description="wavelengths under L/high_freq_factor are kept")]

    ROPE_TYPE = "llama3"

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"high_freq_factor ({high}) must be greater than low_freq_factor ({low})")

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies, which do not depend on `length` [tokens]."""
        ramp = Turns(self.original_seq_len, self.high_freq_factor, self.low_freq_factor)
        return rounded(by_turns(self.theta, ramp, self.factor, rotary_dim))

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        """Read the section, whose names are ours."""
        original = scaling.original()
        low, high = (scaling.number(f"{which}_freq_factor") for which in ("low", "high"))
        if high <= low:
            raise NotTheSame(f"high_freq_factor={high:g}, which is not above low_freq_factor={low:g}")
        ends = {"low_freq_factor": low, "high_freq_factor": high}
        return {"theta": scaling.theta, "factor": scaling.factor(), "original_seq_len": original, **ends}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Write the section, whose names are ours."""
        ends = {"low_freq_factor": self.low_freq_factor, "high_freq_factor": self.high_freq_factor}
        scaling = {"rope_type": self.ROPE_TYPE, **length_keys(self), **ends}
        return NativeScaling(self.theta, scaling, min_positions=extended_length(self))
