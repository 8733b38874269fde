"""What makes a configuration stand by itself: a training (coca_train/settings.py), a data preparation, evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coca_train.config.files import Registry, config_dir
from coca_train.config.messages import Problem


@dataclass(frozen=True, eq=False)
class Root:
    """One kind of configuration: its top file, its shape, its choices, its rules, and how messages speak of it."""

    name: str  # the top file: configs/<folder>/<name>.yaml
    schema: Any  # frozen pydantic dataclass with a field for each section, or for each option that is in none
    command: str  # python -m <command>
    examples: str  # of an option and of a choice, as typed
    groups: tuple[str, ...] = ()  # config groups: folders below configs/<folder>
    check: Callable[[dict[str, Any], bool], list[Problem]] = lambda sections, launch: []  # -> what rules find
    place: str = ""  # what decides where results go
    optional_groups: tuple[str, ...] = ()  # groups of which nothing is chosen in the top file
    global_groups: tuple[str, ...] = ()  # groups whose files are `@package _global_`
    # Sections typed by a module they name, dotted; the section's path is the group that chooses the module.
    registries: Mapping[str, Registry] = field(default_factory=dict)
    folder: str = ""  # below configs, where top file and groups are
    also_takes: tuple[str, ...] = ()  # what its command takes besides, for suggestions
    swept: bool = False  # its command takes --multirun
    has_stages: bool = False  # it has stages and kinds of layers (parts.py)
    # Choices that come along with what the command line says, where it does not choose itself: (its choices, its values
    # as `overrides.Parsed` has them).
    implied_choices: Callable[[Mapping[str, str], Sequence[Any]], dict[str, str]] = lambda groups, values: {}
    # Puts into an assembled configuration what is known of it elsewhere, below the command line: (assembled, choices
    # of the command line, the tree as all of the command line has it, resolved when it is called).
    derive: Callable[[Any, Mapping[str, str], Callable[[], dict[str, Any]]], None] | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Return options that name a module -> the group that chooses it; they are never set by themselves."""
        return {f"{key}.{registry.tag}": key.replace(".", "/") for key, registry in self.registries.items()}

    def registry(self, key: str) -> Registry | None:
        """Return the registry of the innermost section around a dotted key that a module types."""
        sections = [section for section in self.registries if key.startswith(f"{section}.")]
        return self.registries[max(sections, key=len)] if sections else None

    def dirs(self, more: tuple[Path, ...] = ()) -> tuple[Path, ...]:
        """Return the folders with the files of this configuration: ours, then others."""
        return (config_dir() / self.folder, *more)
