"""YaRN with s(l) = max(1, l/L) of the sequence length, in frequencies and temperature (arXiv 2309.00071, 3.3).

For weights that were never tuned; those tuned at some s: dynamic_yarn_tuned.
"""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import Spectrum, YarnRamp, stretch, yarn_spectrum


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(YarnRamp):
    """YaRN by the sequence length."""

    name: Literal["dynamic_yarn"]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return yarn_spectrum(self, stretch(self.original_seq_len, length), rotary_dim)
