"""Rotary frequencies: one file per scaling, usable with every rotary scheme and with CoCA.

Each module holds `Settings` (its own hyper-parameters) and
`spectrum(settings, rotary_dim, length) -> Spectrum`, a pure function: no state survives a call.
"""

import sys
from functools import partial
from types import ModuleType
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator
from torch import Tensor

from coca_train.positions import registry

_package = sys.modules[__name__]


class Spectrum(NamedTuple):
    """What a rotation needs to know."""

    inv_freq_J: Tensor  # radians per position, float32, on the CPU; J = rotary_dim / 2
    temperature: float  # multiplied into both q' and k', hence squared into the score


def frequency_names() -> list[str]:
    """What `frequencies.name` may be: the files of this folder."""
    return registry.names(_package)


def frequency_module(name: str) -> ModuleType:
    """The module positions/frequencies/<name>.py. UserError when there is no such file."""
    return registry.module(_package, name)


def spectrum(settings: Any, rotary_dim: int, length: int) -> Spectrum:
    """Frequencies of the module that `settings` belongs to. length: [tokens], used by the dynamic ones."""
    return frequency_module(settings.name).spectrum(settings, rotary_dim, length)


# The type of a scheme's `frequencies` field: the Settings of the module that `name` names.
Frequencies = Annotated[Any, BeforeValidator(partial(registry.settings, _package, "name"))]
