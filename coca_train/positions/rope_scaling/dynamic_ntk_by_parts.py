"""NTK-by-parts with s(l) = max(1, l/L) of the sequence length (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import PartsRamp, Spectrum, by_parts, rounded, stretch


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(PartsRamp):
    """NTK-by-parts by the sequence length."""

    name: Literal["dynamic_ntk_by_parts"]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return rounded(by_parts(self, stretch(self.original_seq_len, length), rotary_dim))
