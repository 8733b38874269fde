"""LongRoPE (Ding et al., arXiv 2402.13753, section 3) as Phi-3 and `transformers` have it: a factor for every pair.

    θ'_j = θ_j / short_factor_j for l <= L, θ_j / long_factor_j beyond;   temperature sqrt(1 + ln s / ln L)

l is the length in hand, L that of the original weights, s the extension. The factors are searched for each model; both
lists have one for every rotated pair, the fastest first. The temperature depends on s alone, as in the released
models. The paper also leaves the first few tokens where they are; no released model does.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Problem
from coca_train.positions.frequencies import Spectrum, _shared

Factors = list[Annotated[float, Field(gt=0)]] | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A factor for every pair of features."""

    name: Literal["longrope"]
    theta: _shared.Theta
    factor: _shared.Factor
    original_seq_len: Annotated[
        int, Field(gt=1, description="context length of the original weights, L: the short factors up to it [tokens]")
    ]
    short_factor: Annotated[Factors, Field(description="factor of every pair up to L, the fastest first; null: all 1")]
    long_factor: Annotated[
        Factors, Field(description="factor of every pair beyond L; null: all `factor`, which is where a search begins")
    ]

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Lists that are not as long as there are pairs."""
        pairs, found = rotary_dim // 2, []
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and len(factors) != pairs:
                wrong = f"{len(factors)} factors for {pairs} pairs ({rotary_dim} rotated features, two to a pair)"
                key, fix = f"position.frequencies.{name}", f"give {pairs} factors, the fastest pair's first"
                found.append((key, f"{wrong}; each pair needs one of its own", fix))
        return found


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """length: the sequence in hand, l, which decides between the lists [tokens]."""
    inv_freq_J = _shared.base_frequencies(settings.theta, rotary_dim)
    long = length > settings.original_seq_len
    factors, one = (settings.long_factor, settings.factor) if long else (settings.short_factor, 1.0)
    factor_J = torch.tensor(factors or [one] * len(inv_freq_J), dtype=torch.float64)
    temperature = math.sqrt(1 + math.log(settings.factor) / math.log(settings.original_seq_len))
    return Spectrum((inv_freq_J / factor_J).to(torch.float32), temperature)
