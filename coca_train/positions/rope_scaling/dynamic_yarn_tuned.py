"""YaRN of weights that were tuned at a factor: s(l) = max(factor, l/L) of the sequence length, never below it.

The authors' LlamaDynamicYaRNScaledRotaryEmbedding (jquesnelle/yarn) with its flag `finetuned`; without the flag it is
dynamic_yarn (arXiv 2309.00071, section 3.3). Up to factor·L it is yarn.
"""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.rope_scaling import Factor, Spectrum, YarnRamp, yarn_spectrum


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(YarnRamp):
    """YaRN by the sequence length, from the factor of the tuning on."""

    name: Literal["dynamic_yarn_tuned"]
    factor: Factor

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        return yarn_spectrum(self, max(self.factor, length / self.original_seq_len), rotary_dim)
