"""LongRoPE (Ding et al., arXiv 2402.13753, section 3) as Phi-3 and `transformers` have it: a factor for every pair.

    θ'_j = θ_j / short_factor_j for l <= L, θ_j / long_factor_j beyond;   temperature sqrt(1 + ln s / ln L)

l is the sequence length, L that of the original weights, s the extension. The factors are searched for each model; both
lists have one for every rotated pair, the fastest first. The temperature depends on s alone, or is stated, as in the
released models. The paper also leaves the first few tokens where they are; no released model does.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Problem
from coca_train.positions.hugging_face import (
    SAME,
    NativeScaling,
    ScalingReader,
    extended_length,
    length_keys,
)
from coca_train.positions.rope_scaling import Factor, RopeScaling, Spectrum, Temperature, base_inv_freq, rounded

Factors = list[Annotated[float, Field(gt=0)]] | None

ONE_LIST = (
    "transformers before 4.51 have one list of factors for texts of all lengths; so have vLLM (vllm#27431) "
    "and, of Phi-3, llama.cpp (llama.cpp#24823): the long one where the limit they are started with is above the "
    "original length"
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """A factor for every pair of features."""

    name: Literal["longrope"]
    factor: Factor
    original_seq_len: Annotated[
        int, Field(gt=1, description="context length of the original weights, L: the short factors up to it [tokens]")
    ]
    short_factor: Annotated[Factors, Field(description="factor of every pair up to L, the fastest first; null: all 1")]
    long_factor: Annotated[
        Factors, Field(description="factor of every pair beyond L; null: all `factor`, which is where a search begins")
    ]
    temperature: Annotated[
        Temperature,
        Field(description="multiplied into queries and keys; null: sqrt(1 + ln factor / ln original_seq_len)"),
    ]

    ROPE_TYPE = "longrope"

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Refuse lists that do not have one factor for each pair."""
        pairs, issues = rotary_dim // 2, []
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and len(factors) != pairs:
                wrong = f"{len(factors)} factors for {pairs} pairs ({rotary_dim} rotated features, two to a pair)"
                key, fix = f"position.rope_scaling.{name}", f"give {pairs} factors, the fastest pair's first"
                issues.append((key, f"{wrong}; each pair needs one of its own", fix))
        return issues

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies of the list that the sequence length l selects [tokens]."""
        inv_freq_J = base_inv_freq(self.theta, rotary_dim)
        long = length > self.original_seq_len
        factors, one = (self.long_factor, self.factor) if long else (self.short_factor, 1.0)
        factor_J = torch.tensor(factors or [one] * len(inv_freq_J), dtype=torch.float64)
        return rounded(inv_freq_J / factor_J, self._temperature())

    def _temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_seq_len))

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        """Read the section as Phi-3 has it: attention_factor is the temperature, and a missing factor follows from both
        lengths."""
        original, temperature = scaling.original(), scaling.optional("attention_factor")
        lists = {name: scaling.numbers(name) for name in ("short_factor", "long_factor")}
        known = {"theta": scaling.theta, "original_seq_len": original, "temperature": temperature}
        return {**known, "factor": scaling.factor(original), **lists}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        """Spell out lists and temperature, and write both lengths in all the places where a version reads them."""
        temperature, pairs, original = self._temperature(), rotary_dim // 2, self.original_seq_len
        short, long = self.short_factor or [1.0] * pairs, self.long_factor or [self.factor] * pairs
        scaling: dict[str, object] = {"rope_type": self.ROPE_TYPE, **length_keys(self)}
        scaling |= {"short_factor": short, "long_factor": long}
        caveats = [] if short == long else [ONE_LIST]
        usual = math.sqrt(1 + math.log(self.factor) / math.log(original))
        if not math.isclose(temperature, usual, rel_tol=SAME):
            caveats.append(f"vLLM does not read attention_factor={temperature:g} and uses {usual:.4g}")
        return NativeScaling(
            self.theta,
            scaling | {"attention_factor": temperature},
            max_positions=extended_length(self),
            original=original,
            decodes_to=None if short == long else original,
            caveats=tuple(caveats),
        )
