"""Linear scaling with s(l) = max(1, l/L) of the sequence length (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import OriginalSeqLen, RopeScaling, Spectrum, stretch
from coca_train.positions.rope_scaling.linear import interpolated


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Linear scaling by the sequence length."""

    name: Literal["dynamic_linear"]
    original_seq_len: OriginalSeqLen

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return interpolated(self.theta, stretch(self.original_seq_len, length), rotary_dim)
