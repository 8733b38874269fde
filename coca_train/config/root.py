"""One kind of configuration: that of a training (coca_train/settings.py), of data_prep, of evaluation, of a verb."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from coca_train.config.files import Registry, config_dir
from coca_train.config.messages import Problem

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from coca_train.config.compose import Assembled

ConfigT = TypeVar("ConfigT")  # the schema of a configuration


@dataclass(frozen=True, eq=False)
class Root(Generic[ConfigT]):
    """One kind of configuration: its top file, schema, choices and rules, and its words in messages."""

    name: str  # the top file: configs/<folder>/<name>.yaml
    schema: type[ConfigT]  # frozen pydantic dataclass with a field for each section, or for each option that is in none
    command: str  # python -m <command>
    examples: str  # of an option and of a choice, as typed
    groups: tuple[str, ...] = ()  # config groups: folders below configs/<folder>
    check: Callable[[dict[str, object], bool], list[Problem]] = lambda sections, launch: []  # the rules
    place: str = ""  # the options of the folder of results
    optional_groups: tuple[str, ...] = ()  # groups of which nothing is chosen in the top file
    global_groups: tuple[str, ...] = ()  # groups whose files are `@package _global_`
    # Sections typed by a module they name, dotted; the section's path is the group that chooses the module.
    registries: Mapping[str, Registry] = field(default_factory=dict)
    folder: str = ""  # below configs, where top file and groups are
    passthrough_groups: tuple[str, ...] = ()  # groups that its command takes for another configuration, for suggestions
    swept: bool = False  # its command takes --multirun
    # Choices that the command line implies: (its choices, its values as in `overrides.Parsed`).
    implied_choices: Callable[[Mapping[str, str], Sequence["Override"]], dict[str, str]] = lambda groups, values: {}
    # Writes derived values into an assembled configuration, below the command line: (assembled, choices of the command
    # line, a function that returns the tree with all of the command line, resolved).
    derive: Callable[["Assembled", Mapping[str, str], Callable[[], dict[str, object]]], None] | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Return the options that name a module -> the group that chooses it; they are never set directly."""
        return {f"{key}.{registry.tag}": key.replace(".", "/") for key, registry in self.registries.items()}

    def registry(self, key: str) -> Registry | None:
        """Return the registry of the innermost section around a dotted key that a module types."""
        sections = [section for section in self.registries if key.startswith(f"{section}.")]
        return self.registries[max(sections, key=len)] if sections else None

    def dirs(self, more: tuple[Path, ...] = ()) -> tuple[Path, ...]:
        """Return the folders with the files of this configuration: ours, then `more`."""
        return (config_dir() / self.folder, *more)
