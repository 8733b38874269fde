"""How attention learns the positions of tokens: one file per scheme, RoPE scaling as a second axis.

Nothing here imports torch before it is needed: the registries are what `--help` lists.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.config.files import Registry
from coca_train.config.schema import SchemeSettings

if TYPE_CHECKING:
    from coca_train.positions.base import AttentionShape, Initial, Position
    from coca_train.positions.rope_scaling import RopeScaling


_HERE = Path(__file__).parent
SCHEMES: Registry[SchemeSettings] = Registry(
    _HERE / "schemes", lambda name: import_module(f"{__name__}.schemes.{name}"), "scheme", "coca_train.schemes"
)
ROPE_SCALINGS: "Registry[RopeScaling]" = Registry(
    _HERE / "rope_scaling",
    lambda name: import_module(f"{__name__}.rope_scaling.{name}"),
    "name",
    "coca_train.rope_scalings",
)


def scheme_class(name: str) -> "type[Position]":
    """Return the class Scheme of positions/schemes/<name>.py. UserError when there is no such file."""
    return SCHEMES.module(name).Scheme


def settings(value: object) -> SchemeSettings:
    """Check a mapping with the key `scheme` and return it as that scheme's Settings (errors: see Registry.settings)."""
    return SCHEMES.settings(value)


def build(settings: SchemeSettings, shape: "AttentionShape") -> "Position":
    """Return the scheme that `settings` names, for one attention shape."""
    return scheme_class(settings.scheme)(settings, shape)


def scaling_of(settings: SchemeSettings) -> "RopeScaling | None":
    """Return the RoPE scaling of a scheme; None: it has no frequencies."""
    return getattr(settings, "rope_scaling", None)


def initials(settings: SchemeSettings) -> "dict[str, Initial]":
    """Return how the parameters of a scheme and of its frequencies start, by the last part of their names; those left
    out start as any other parameter does."""
    scaling = scaling_of(settings)
    return {**scheme_class(settings.scheme).INITIAL, **({} if scaling is None else scaling.INITIAL)}
