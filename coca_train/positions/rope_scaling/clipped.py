"""Clipped RoPE (Li et al., arXiv 2602.05258; the authors call it CoPE): the slowest pairs fade out along a cosine.

Of J pairs the n = round(share·J) slowest keep ½(1 + cos(π i/(n-1))) of their θ_j, i = 0 … n-1: the first of them all of
it, the last none, so that no pair is beyond what training showed of its turn. A hard clip (`hope`, `partial`) cuts the
spectrum at one pair instead, and rings in the scores over long distances as a cut spectrum does.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Problem
from coca_train.positions.rope_scaling import RopeScaling, Spectrum, base_inv_freq, rounded


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """A soft end of the spectrum."""

    name: Literal["clipped"]
    share: Annotated[
        float, Field(gt=0, le=1, description="share of pairs, the slowest, that fade out; the paper: 20 of 64, 0.3125")
    ]

    def _fading(self, rotary_dim: int) -> int:
        return round(self.share * rotary_dim / 2)

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Refuse a share of fewer than two pairs, which has no first and last one."""
        n_pairs = rotary_dim // 2
        if self._fading(rotary_dim) >= 2:
            return []
        wrong = f"a share of {self.share:g} of {n_pairs} pairs is less than two pairs, so that nothing would fade"
        least = math.ceil(150 / n_pairs) / 100  # 1.5 pairs are rounded to two
        return [("position.rope_scaling.share", wrong, f"position.rope_scaling.share={least:g} or more")]

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies, which do not depend on `length` [tokens]."""
        inv_freq_J, n = base_inv_freq(self.theta, rotary_dim), self._fading(rotary_dim)
        phase_n = torch.arange(n, dtype=torch.float64) * (math.pi / (n - 1))
        inv_freq_J[-n:] *= (phase_n / 2).cos() ** 2  # ½(1 + cos x), without its cancellation near π
        inv_freq_J[-1] = 0.0
        return rounded(inv_freq_J)
