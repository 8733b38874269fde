"""Rotary frequencies: one file per scaling, usable with every rotary scheme and with CoCA.

Each module holds `Settings` (its own hyper-parameters, and where they must fit the width that is rotated a method
`problems(rotary_dim)`, see positions/base.py) and one of

`spectrum(settings, rotary_dim, length) -> Spectrum`  a pure function: no state survives a call.
`class Learned(nn.Module)`  when the frequencies have parameters: `Learned(settings, rotary_dim)`, whose
    forward(length) gives the Spectrum, a pure function of (parameters, length) in eval mode.

Frequencies that classes of the transformers library compute too say so in its words: positions/hugging_face.py.

Schemes see none of this: `build` gives a module in both cases, and calling it gives the Spectrum.
"""

from types import ModuleType
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator
from torch import Tensor, nn

from coca_train.positions import FREQUENCIES


class Spectrum(NamedTuple):
    """What a rotation needs to know."""

    inv_freq_J: Tensor  # radians per position, float32; J = rotary_dim / 2; fixed ones are on the CPU
    temperature: float  # multiplied into both q' and k', hence squared into the score
    positions_N: Tensor | None = None  # float32: where position 0, 1, … of N is put instead; None: where it is
    end: float = 0.0  # the last of positions_N


def rounded(inv_freq_J: Tensor, temperature: float = 1.0) -> Spectrum:
    """Of frequencies in float64: computed wide and rounded once, so that they are the nearest float32 ones."""
    return Spectrum(inv_freq_J.float(), temperature)


class Fixed(nn.Module):
    """Frequencies without parameters: the `spectrum` function of the module that `settings` belongs to."""

    def __init__(self, settings: Any, rotary_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.rotary_dim = rotary_dim
        self._last: tuple[int, Spectrum] | None = None

    def forward(self, length: int) -> Spectrum:
        """length: the sequence in hand [tokens], used by the dynamic ones."""
        # The same object while the length is the same: its copy on a device is kept with it (positions/known.py).
        if self._last is None or self._last[0] != length:
            made = frequency_module(self.settings.name).spectrum(self.settings, self.rotary_dim, length)
            self._last = length, made
        return self._last[1]


def frequency_module(name: str) -> ModuleType:
    """The module positions/frequencies/<name>.py. UserError when there is no such file."""
    return FREQUENCIES.module(name)


def build(settings: Any, rotary_dim: int) -> nn.Module:
    """The frequencies that `settings` names, for `rotary_dim` rotated features: forward(length) -> Spectrum.

    A scheme calls it like a function and once per forward: a sharded engine (ZeRO 3) lends the parameters
    for the duration of that call.
    """
    return getattr(frequency_module(settings.name), "Learned", Fixed)(settings, rotary_dim)


def exchange_problem(trained: Any, other: Any) -> str:
    """Why weights trained with the frequencies `trained` cannot take the others, in words; empty: they can."""
    for settings in (trained, other):
        if trained.name != other.name and hasattr(frequency_module(settings.name), "Learned"):
            return f"{settings.name} has parameters of its own; only weights trained with it have them"
    return ""


# The type of a scheme's `frequencies` field: the Settings of the module that `name` names.
Frequencies = Annotated[Any, BeforeValidator(FREQUENCIES.settings)]
