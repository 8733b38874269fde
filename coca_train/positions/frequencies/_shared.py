"""What the scalings have in common: field types, θ_j, the ramp of NTK-by-parts, the dynamic factor."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT

Theta = Annotated[float, Field(gt=1, description="rotary base: pair j turns theta^(-2j/D) radians per position")]
Factor = Annotated[float, Field(ge=1, description="extension factor s = target length / original length")]
OriginalSeqLen = Annotated[int, Field(gt=0, description="context length the weights were trained at, L [tokens]")]
BetaFast = Annotated[
    float, Field(gt=0, description="pairs that turn more often than this over L keep their frequency [turns]")
]
BetaSlow = Annotated[
    float, Field(gt=0, description="pairs that turn less often than this over L are interpolated fully [turns]")
]
Convention = Annotated[
    Literal["paper", "code"],
    Field(
        description="paper: ramp over the turns of each pair (YaRN Eq. 18); "
        "code: ramp over pair indices between rounded ends (the authors' code, released checkpoints, transformers)"
    ),
]
# What the authors' code ramps between NTK-aware and interpolated frequencies [turns over L]; found by trying, it says.
NTK_FAST, NTK_SLOW = 1.25, 0.75


def _present_name(convention: Any) -> Any:
    """`indices` was called `code`, which it is not: in runs and exports of before it still is."""
    return "indices" if convention == "code" else convention


PartsConvention = Annotated[
    Literal["paper", "indices", "authors"],
    BeforeValidator(_present_name),
    Field(
        description="paper: ramp over the turns of each pair (YaRN Eq. 18); indices: over pair indices between rounded "
        "ends, as YaRN's code has it, without its temperature; authors: what the same authors' code calls NTK-by-parts "
        "(between interpolated and own frequencies come NTK-aware ones; its beta_fast is 16, its beta_slow 2)"
    ),
]


def base_frequencies(theta: float, rotary_dim: int, device: torch.device | None = None) -> Tensor:
    """θ_j = theta^(-2j/D) for j < D/2, float64 (RoFormer, arXiv 2104.09864, Eq. 15). device: None, torch's default."""
    return theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim)


def ntk_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """base · s^(D/(D-2)): the slowest pair is interpolated by s, the fastest is kept (YaRN, 2309.00071, Eq. 16)."""
    return theta * factor ** (rotary_dim / (rotary_dim - 2))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ramp:
    """The fields that NTK-by-parts and its descendants share. ValueError unless the ramp has a width."""

    theta: Theta
    original_seq_len: OriginalSeqLen
    beta_fast: BetaFast
    beta_slow: BetaSlow

    def __post_init__(self) -> None:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast ({self.beta_fast}) must be greater than beta_slow ({self.beta_slow})")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class YarnRamp(Ramp):
    """YaRN's: one code in circulation."""

    convention: Convention


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PartsRamp(Ramp):
    """NTK-by-parts': two codes in circulation."""

    convention: PartsConvention


# A formula with the extension factor s left open: (settings, rotary_dim, s) -> Spectrum.
Scaled = Callable[[Any, int, float], Any]
# What a module of this folder offers: (settings, rotary_dim, length of the sequence in hand [tokens]) -> Spectrum.
OfLength = Callable[[Any, int, int], Any]


def fixed(scaled: Scaled) -> OfLength:
    """The formula with the factor of the settings, whatever the length."""
    return lambda settings, rotary_dim, length: scaled(settings, rotary_dim, settings.factor)


def stretch(settings: Any, length: int) -> float:
    """s(l) = max(1, l/L) (YaRN section 3.3)."""
    return max(1.0, length / settings.original_seq_len)


def dynamic(scaled: Scaled, factor: Callable[[Any, int], float] = stretch) -> OfLength:
    """The formula with a factor s(l) that follows the length in hand: a pure function of it, so that a short sequence
    after a long one gets what it would have got before."""
    return lambda settings, rotary_dim, length: scaled(settings, rotary_dim, factor(settings, length))


def yarn_temperature(factor: float) -> float:
    """sqrt(1/t) = 0.1 ln s + 1 (YaRN Eq. 22)."""
    return 0.1 * math.log(factor) + 1.0


def by_parts(settings: YarnRamp | PartsRamp, factor: float, rotary_dim: int) -> Tensor:
    """(1-γ_j)·θ_j/s + γ_j·θ_j with s = factor, float64 (YaRN Eq. 20).

    convention authors: the first θ_j/s is mixed with NTK-aware frequencies before, by a ramp of its own
    (jquesnelle/yarn, LlamaPartNTKScaledRotaryEmbedding).
    """
    if settings.convention == "paper":
        ramp = Turns(settings.original_seq_len, settings.beta_fast, settings.beta_slow)
        return by_turns(settings.theta, ramp, factor, rotary_dim)
    theta_J = base_frequencies(settings.theta, rotary_dim)
    slowed_J = theta_J / factor
    if settings.convention == "authors":
        ntk_J = base_frequencies(ntk_theta(settings.theta, factor, rotary_dim), rotary_dim)
        ntk_share_J = _by_indices(settings, NTK_FAST, NTK_SLOW, rotary_dim)
        slowed_J = (1 - ntk_share_J) * slowed_J + ntk_share_J * ntk_J
    kept_J = _by_indices(settings, settings.beta_fast, settings.beta_slow, rotary_dim)
    return (1 - kept_J) * slowed_J + kept_J * theta_J


def _by_indices(settings: Ramp, fast: float, slow: float, rotary_dim: int) -> Tensor:
    """The ramp of the code, over pair indices: 1 up to the pair that makes `fast` turns, 0 from that of `slow` on."""
    low = max(math.floor(_pair_that_turns(fast, settings, rotary_dim)), 0)
    high = min(math.ceil(_pair_that_turns(slow, settings, rotary_dim)), rotary_dim - 1)
    width = high - low or 0.001  # the authors' guard against an empty ramp
    return 1 - ((torch.arange(rotary_dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)


class Turns(NamedTuple):
    """A ramp over the turns that a pair makes in the original length [tokens]: kept from `fast` on, interpolated up to
    `slow`."""

    original_seq_len: int
    fast: float
    slow: float


def by_turns(theta: float, ramp: Turns, factor: float, rotary_dim: int) -> Tensor:
    """The paper's ramp (YaRN Eq. 18 and 20), float64."""
    theta_J = base_frequencies(theta, rotary_dim)
    turns_J = ramp.original_seq_len * theta_J / (2 * math.pi)
    kept_J = ((turns_J - ramp.slow) / (ramp.fast - ramp.slow)).clamp(0, 1)
    return (1 - kept_J) * theta_J / factor + kept_J * theta_J


def _pair_that_turns(turns: float, settings: Ramp, rotary_dim: int) -> float:
    """The (fractional) pair index that makes `turns` turns over L tokens."""
    wavelengths = settings.original_seq_len / (turns * 2 * math.pi)
    return rotary_dim * math.log(wavelengths) / (2 * math.log(settings.theta))
