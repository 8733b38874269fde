"""HoPE (Chen et al., arXiv 2410.21216): pairs that do not turn once within the training window carry content alone.

θ_j stays where its wavelength is below the window, θ_j > 2π/L, and is 0 elsewhere: of a slower pair training shows a
part of the turn only, and beyond L come angles that it has never seen. `partial` with a threshold for its share. Other
papers have the same name for other things.
"""

import math
from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Problem
from coca_train.positions.rope_scaling import OriginalSeqLen, RopeScaling, Spectrum, base_inv_freq, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """Rotation of the pairs that training shows whole."""

    name: Literal["hope"]
    original_seq_len: OriginalSeqLen

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Refuse a window so short that nothing turns."""
        if self.original_seq_len > 2 * math.pi:
            return []
        wrong = f"the fastest pair turns once in 6.28 tokens, and {self.original_seq_len} are fewer; nothing would turn"
        return [("position.rope_scaling.original_seq_len", wrong, "position.rope_scaling.original_seq_len=7 or more")]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies, which do not depend on `length` [tokens]."""
        inv_freq_J = base_inv_freq(self.theta, rotary_dim)
        return rounded(inv_freq_J * (inv_freq_J > 2 * math.pi / self.original_seq_len))
