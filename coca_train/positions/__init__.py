"""How attention knows where a token stands: one file per scheme, frequencies as a second axis."""

from types import ModuleType
from typing import Any

from coca_train.positions import registry, schemes
from coca_train.positions.base import AttentionShape, Position

__all__ = ["AttentionShape", "Position", "build", "scheme_module", "scheme_names", "settings"]


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
