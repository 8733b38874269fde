"""The registries of an export: the schemes, frequencies and visibilities of one model, each a file beside this one."""

from importlib import import_module
from types import ModuleType


class Shipped:
    """Modules by the names that config.json has for them. files: of each name, the file without `.py`."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def module(self, name: str) -> ModuleType:
        """The module of this name, imported when it is asked for: it may import what asks."""
        return import_module(f".{self.files[name]}", __package__)
