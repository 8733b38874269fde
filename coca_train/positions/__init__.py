"""How attention knows where a token stands: one file per scheme, frequencies as a second axis.

Nothing here imports torch before it is needed: the registries are what `--help` lists.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coca_train.config.files import Registry

if TYPE_CHECKING:
    from coca_train.positions.base import AttentionShape, Initial, Narrow, Position


_HERE = Path(__file__).parent
SCHEMES = Registry(
    _HERE / "schemes", lambda name: import_module(f"{__name__}.schemes.{name}"), "scheme", "coca_train.schemes"
)
FREQUENCIES = Registry(
    _HERE / "frequencies",
    lambda name: import_module(f"{__name__}.frequencies.{name}"),
    "name",
    "coca_train.frequencies",
)


def scheme_module(name: str) -> ModuleType:
    """The module positions/schemes/<name>.py. UserError when there is no such file."""
    return SCHEMES.module(name)


def settings(value: Any) -> Any:
    """A mapping with the key `scheme`, typed by that scheme's own Settings (errors: see Registry.settings)."""
    return SCHEMES.settings(value)


def build(settings: Any, shape: "AttentionShape") -> "Position":
    """The scheme that `settings` names, for one attention shape."""
    return scheme_module(settings.scheme).Scheme(settings, shape)


def initials(settings: Any) -> "dict[str, Initial]":
    """How the parameters of a scheme and of its frequencies start, by the last part of their names; those left out
    start as any other parameter does."""
    modules = [scheme_module(settings.scheme)]
    if hasattr(settings, "frequencies"):
        modules.append(FREQUENCIES.module(settings.frequencies.name))
    return {name: initial for module in modules for name, initial in getattr(module, "INITIAL", {}).items()}


def narrow_key(settings: Any) -> "Narrow | None":
    """How a scheme makes the start of a key projection narrower than D from one of D; None: it is drawn as it is."""
    return getattr(scheme_module(settings.scheme), "NARROW_KEY", None)
