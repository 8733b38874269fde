"""Rotary frequencies: one file per scaling, usable with every rotary scheme and with CoCA.

Each module holds `Settings`, a `RopeScaling`: its hyper-parameters and the spectrum that follows from them. A scheme
sees none of this: `Settings.build` gives a module, and calling it with a length gives the Spectrum.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions import ROPE_SCALINGS
from coca_train.positions.base import Initial, Problem

if TYPE_CHECKING:
    from coca_train.positions.hugging_face import NativeScaling, ScalingReader


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
    Literal["paper", "code", "unrounded"],
    Field(
        description="paper: ramp over the turns of each pair (YaRN Eq. 18); "
        "code: ramp over pair indices between rounded ends (the authors' code, released checkpoints, transformers); "
        "unrounded: between ends that are not rounded (transformers' truncate: false, gpt-oss)"
    ),
]
Temperature = Annotated[float, Field(gt=0)] | None
# What the authors' code ramps between NTK-aware and interpolated frequencies [turns over L], by experiment.
NTK_FAST, NTK_SLOW = 1.25, 0.75


def _name_ramp(convention: object) -> object:
    """Return `indices` for `code`, which is what yarn calls the same ramp."""
    return "indices" if convention == "code" else convention


PartsConvention = Annotated[
    Literal["paper", "indices", "unrounded", "authors"],
    BeforeValidator(_name_ramp),
    Field(
        description="paper: ramp over the turns of each pair (YaRN Eq. 18); indices: over pair indices between rounded "
        "ends, as YaRN's code has it, without its temperature; unrounded: between ends that are not rounded; "
        "authors: what the same authors' code calls NTK-by-parts "
        "(between interpolated and own frequencies come NTK-aware ones; its beta_fast is 16, its beta_slow 2)"
    ),
]


class Spectrum(NamedTuple):
    """Frequencies, temperature and, where they move, positions of a rotation."""

    inv_freq_J: Tensor  # radians per position, float32; J = rotary_dim / 2; fixed ones are on the CPU
    temperature: float  # multiplied into both q' and k', hence squared into the score
    positions_N: Tensor | None = None  # float32: where position 0, 1, … of N is put instead; None: where it is
    end: float = 0.0  # the last of positions_N
    period_J: Tensor | None = None  # int64: wavelengths that are whole numbers of tokens; None: they are not


def rounded(inv_freq_J: Tensor, temperature: float = 1.0) -> Spectrum:
    """Round frequencies in float64 to the nearest float32 ones."""
    return Spectrum(inv_freq_J.float(), temperature)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RopeScaling:
    """Base of the settings of all scalings. A scaling overrides `spectrum`, or `build` where its frequencies have
    parameters.

    INITIAL: initial values of these parameters, by name. ROPE_TYPE: the rope_type of a config.json that it can be;
    None: none. NATIVE: the settings with which transformers has it, where it does not have others.
    """

    name: str
    theta: Theta

    INITIAL: ClassVar[Mapping[str, Initial]] = {}
    ROPE_TYPE: ClassVar[str | None] = None
    NATIVE: ClassVar[Mapping[str, object]] = {}
    learned: ClassVar[bool] = False  # it has parameters

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        """Return the frequencies of rotary_dim features at a length [tokens]: a pure function, no state survives."""
        raise NotImplementedError(f"{type(self).__module__}: spectrum")

    def build(self, rotary_dim: int) -> nn.Module:
        """Return the module of the frequencies: forward(length) -> Spectrum. Learned ones are a pure function of
        (parameters, length) in eval mode; a scheme calls them once per forward: a sharded engine (ZeRO 3) lends the
        parameters for that call."""
        return Fixed(self, rotary_dim)

    def problems(self, rotary_dim: int) -> list[Problem]:
        """Return what does not fit the width that is rotated (see positions/base.py)."""
        return []

    @classmethod
    def from_transformers(cls, scaling: "ScalingReader") -> dict[str, object] | None:
        """Return our settings, all but the name, of a rope_scaling of our ROPE_TYPE; None: it is another module's.
        Raises NotTheSame for what the other side computes differently."""
        return None

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> "NativeScaling | None":
        """Return the words of transformers for these settings; None: it has none. Raises NotTheSame as above."""
        return None


class Fixed(nn.Module):
    """Frequencies without parameters."""

    def __init__(self, settings: RopeScaling, rotary_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.rotary_dim = rotary_dim
        self._last: tuple[int, Spectrum] | None = None

    def forward(self, length: int) -> Spectrum:
        """Return the spectrum at a length [tokens], which the dynamic scalings use."""
        # The same object while the length is the same: copies on devices are kept for it.
        if self._last is None or self._last[0] != length:
            self._last = length, self.settings.spectrum(self.rotary_dim, length)
        return self._last[1]


# ---- choosing one


def settings_class(name: str) -> type[RopeScaling]:
    """Return the Settings of positions/rope_scaling/<name>.py. UserError when there is no such file."""
    return ROPE_SCALINGS.module(name).Settings


def exchange_problem(trained: RopeScaling, other: RopeScaling) -> str:
    """Return why weights trained with the frequencies `trained` cannot use the others; empty: they can."""
    for settings in (trained, other):
        if type(trained) is not type(other) and settings.learned:
            return f"{settings.name} has parameters of its own; only weights trained with it have them"
    return ""


# The type of a scheme's `rope_scaling` field: the Settings of the module that `name` names.
AnyRopeScaling = Annotated[RopeScaling, PlainValidator(ROPE_SCALINGS.settings)]


# ---- formulas that scalings share


def base_inv_freq(theta: float, rotary_dim: int, device: torch.device | None = None) -> Tensor:
    """Return θ_j = theta^(-2j/D) for j < D/2, float64 (RoFormer, arXiv 2104.09864, Eq. 15). device: None, torch's
    default."""
    return theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim)


def ntk_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """Return base · s^(D/(D-2)): the slowest pair is interpolated by s, the fastest is kept (YaRN, 2309.00071, Eq.
    16)."""
    return theta * factor ** (rotary_dim / (rotary_dim - 2))


def stretch(original_seq_len: int, length: int) -> float:
    """Return s(l) = max(1, l/L) (YaRN section 3.3)."""
    return max(1.0, length / original_seq_len)


def yarn_temperature(factor: float) -> float:
    """Return sqrt(1/t) = 0.1 ln s + 1 (YaRN Eq. 22)."""
    return 0.1 * math.log(factor) + 1.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ramp(RopeScaling):
    """The fields that NTK-by-parts and its descendants share. ValueError unless the ramp has a width."""

    original_seq_len: OriginalSeqLen
    beta_fast: BetaFast
    beta_slow: BetaSlow

    def __post_init__(self) -> None:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast ({self.beta_fast}) must be greater than beta_slow ({self.beta_slow})")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class YarnRamp(Ramp):
    """YaRN's ramp, of which one implementation is in use."""

    convention: Convention


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PartsRamp(Ramp):
    """NTK-by-parts' ramp, of which two implementations are in use."""

    convention: PartsConvention


def yarn_spectrum(settings: YarnRamp, factor: float, rotary_dim: int) -> Spectrum:
    """Return YaRN's frequencies and temperature for any factor s."""
    return rounded(by_parts(settings, factor, rotary_dim), yarn_temperature(factor))


def by_parts(settings: YarnRamp | PartsRamp, factor: float, rotary_dim: int) -> Tensor:
    """Return (1-γ_j)·θ_j/s + γ_j·θ_j with s = factor, float64 (YaRN Eq. 20).

    convention authors: the first θ_j/s is mixed with NTK-aware frequencies before, by a ramp of its own
    (jquesnelle/yarn, LlamaPartNTKScaledRotaryEmbedding).
    """
    if settings.convention == "paper":
        ramp = Turns(settings.original_seq_len, settings.beta_fast, settings.beta_slow)
        return by_turns(settings.theta, ramp, factor, rotary_dim)
    theta_J = base_inv_freq(settings.theta, rotary_dim)
    slowed_J = theta_J / factor
    if settings.convention == "authors":
        ntk_J = base_inv_freq(ntk_theta(settings.theta, factor, rotary_dim), rotary_dim)
        ntk_share_J = _by_indices(settings, NTK_FAST, NTK_SLOW, rotary_dim)
        slowed_J = (1 - ntk_share_J) * slowed_J + ntk_share_J * ntk_J
    kept_J = _by_indices(settings, settings.beta_fast, settings.beta_slow, rotary_dim)
    return (1 - kept_J) * slowed_J + kept_J * theta_J


def _by_indices(settings: YarnRamp | PartsRamp, fast: float, slow: float, rotary_dim: int) -> Tensor:
    """Return the ramp of the code, over pair indices: 1 up to the pair that makes `fast` turns, 0 from that of `slow`
    on. Its ends are rounded, but by convention unrounded."""
    low, high = (_pair_that_turns(turns, settings, rotary_dim) for turns in (fast, slow))
    if settings.convention != "unrounded":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001  # the authors' guard against an empty ramp
    return 1 - ((torch.arange(rotary_dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)


class Turns(NamedTuple):
    """A ramp over the turns that a pair makes in the original length [tokens]: kept from `fast` on, interpolated up to
    `slow`."""

    original_seq_len: int
    fast: float
    slow: float


def by_turns(theta: float, ramp: Turns, factor: float, rotary_dim: int) -> Tensor:
    """Return the frequencies of the paper's ramp (YaRN Eq. 18 and 20), float64."""
    theta_J = base_inv_freq(theta, rotary_dim)
    turns_J = ramp.original_seq_len * theta_J / (2 * math.pi)
    kept_J = ((turns_J - ramp.slow) / (ramp.fast - ramp.slow)).clamp(0, 1)
    return (1 - kept_J) * theta_J / factor + kept_J * theta_J


def _pair_that_turns(turns: float, settings: Ramp, rotary_dim: int) -> float:
    """Return the (fractional) pair index that makes `turns` turns over L tokens."""
    wavelengths = settings.original_seq_len / (turns * 2 * math.pi)
    return rotary_dim * math.log(wavelengths) / (2 * math.log(settings.theta))
