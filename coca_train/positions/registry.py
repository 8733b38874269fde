"""A folder of modules is the registry: a config may name a file of that folder and nothing else."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from coca_train.runtime.errors import UserError


def names(package: ModuleType) -> list[str]:
    """Modules of `package` that a config may name, sorted; those with a leading underscore are helpers."""
    return sorted(m.name for m in iter_modules(package.__path__) if not m.name.startswith("_"))


def module(package: ModuleType, name: Any) -> ModuleType:
    """The module `name` of `package`. UserError when no such file exists; nothing is imported then."""
    known = names(package)
    if name not in known:
        raise UserError(f"{name!r} is not one of {', '.join(known)}")
    return import_module(f"{package.__name__}.{name}")


def settings(package: ModuleType, tag: str, value: Any) -> Any:
    """Type a mapping by the module that its key `tag` names.

    Returns that module's `Settings`. Raises UserError (no or unknown name) or pydantic's
    ValidationError (one line per wrong key, with its location).
    """
    if hasattr(value, tag) and isinstance(value, module(package, getattr(value, tag)).Settings):
        return value
    if not isinstance(value, dict):
        raise UserError(f"{value!r} is not a mapping with the key {tag!r}")
    if tag not in value:
        raise UserError(f"the key {tag!r} is missing; it names one of {', '.join(names(package))}")
    return module(package, value[tag]).Settings(**value)
