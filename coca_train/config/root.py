"""What makes a configuration stand by itself: a training (`TRAIN`), a data preparation (`data_prep.settings`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.config import check
from coca_train.config.files import config_dir
from coca_train.config.messages import Problem
from coca_train.config.schema import Config


class ModuleFolder(NamedTuple):
    """A folder of modules whose `Settings` type a section: where their options stand, the group that chooses one."""

    folder: str  # below coca_train
    prefix: str
    group: str


@dataclass(frozen=True, eq=False)
class Root:
    """One kind of configuration: its top file, its shape, its choices, its rules, and how messages speak of it."""

    name: str  # the top file: configs/<folder>/<name>.yaml
    schema: Any  # frozen pydantic dataclass with a field for each section
    groups: tuple[str, ...]  # config groups: folders below configs/<folder>
    check: Callable[[dict[str, Any], bool], list[Problem]]  # (sections that are right, launch) -> what rules find
    command: str  # python -m <command>
    examples: str  # of an option and of a choice, as typed
    place: str  # what decides where results go
    without_default: tuple[str, ...] = ()  # groups of which nothing is chosen in the top file
    from_top: tuple[str, ...] = ()  # groups whose files are `@package _global_`
    # Sections typed by a module they name: section -> (the option that names it, where the modules are).
    modules: dict[str, tuple[str, str]] = field(default_factory=dict)
    module_folders: tuple[ModuleFolder, ...] = ()
    # Options that name a module -> the group that chooses it; they are never set by themselves.
    tags: dict[str, str] = field(default_factory=dict)
    # Sections of named parts -> the file with what a part leaves out, from `configs`, without its ending.
    templates: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # below configs, where top file and groups are

    def dirs(self, more: tuple[Path, ...] = ()) -> tuple[Path, ...]:
        """Folders with the files of this configuration: ours, then others."""
        return (config_dir() / self.folder, *more)


TRAIN = Root(
    name="train",
    schema=Config,
    groups=(
        "model",
        "position",
        "position/frequencies",
        "visibility",
        "data",
        "optim",
        "stages",
        "engine",
        "tracking",
        "eval",
        "experiment",
    ),
    check=check.problems,
    command="coca_train",
    examples="train.max_steps=100, or group=choice, e.g. position=coca",
    place="run.root and run.name",
    without_default=("experiment",),
    from_top=("experiment",),
    modules={
        "position": ("scheme", "coca_train.positions"),
        "visibility": ("name", "coca_train.positions.visibilities"),
    },
    module_folders=(
        ModuleFolder("positions/schemes", "position.", "position"),
        ModuleFolder("positions/frequencies", "position.frequencies.", "position/frequencies"),
        ModuleFolder("positions/visibilities", "visibility.", "visibility"),
    ),
    templates={"stages": "stages/_stage"},
    tags={
        "position.scheme": "position",
        "position.frequencies.name": "position/frequencies",
        "visibility.name": "visibility",
    },
)
