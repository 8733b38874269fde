"""How attention knows where a token stands: one file per scheme, frequencies as a second axis."""

from types import ModuleType
from typing import Any

from coca_train.positions import frequencies, registry, schemes
from coca_train.positions.base import AttentionShape, Initial, Position

__all__ = ["AttentionShape", "Position", "build", "initials", "scheme_module", "scheme_names", "settings"]


def scheme_names() -> list[str]:
    """What `scheme:` may name: the files of positions/schemes/."""
    return registry.names(schemes)


def scheme_module(name: str) -> ModuleType:
    """The module positions/schemes/<name>.py. UserError when there is no such file."""
    return registry.module(schemes, name)


def settings(value: Any) -> Any:
    """A mapping with the key `scheme`, typed by that scheme's own Settings (errors: see registry.settings)."""
    return registry.settings(schemes, "scheme", value)


def build(settings: Any, shape: AttentionShape) -> Position:
    """The scheme that `settings` names, for one attention shape."""
    return scheme_module(settings.scheme).Scheme(settings, shape)


def initials(settings: Any) -> dict[str, Initial]:
    """How the parameters of a scheme and of its frequencies start, by the last part of their names; those left out
    start as any other parameter does."""
    modules = [scheme_module(settings.scheme)]
    if hasattr(settings, "frequencies"):
        modules.append(frequencies.frequency_module(settings.frequencies.name))
    return {name: initial for module in modules for name, initial in getattr(module, "INITIAL", {}).items()}
