"""The choices of a config group: YAML files of a folder, modules of a folder, plugins.

Only names and comments are read, since `--help` must not wait for torch. A plugin is a module of another distribution,
offered as an entry point of the registry's group.
"""

import ast
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import UserError

SettingsT = TypeVar("SettingsT")  # what types a section


@cache
def config_dir() -> Path:
    """Return the folder `configs`: inside the installed package, or next to it in a source checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "configs", here.parents[2] / "configs"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"coca_train is installed without its configs folder (next to {here.parents[1]})")


_more: list[Path] = []  # of this process's command line


def use_folders(folders: Iterable[Path]) -> None:
    """Let what these folders hold (--config-dir) be chosen wherever a choice of ours can be named."""
    _more[:] = folders


def config_dirs() -> tuple[Path, ...]:
    """Return the folders of choices: ours, then those of --config-dir."""
    return (config_dir(), *_more)


def file_state(path: Path) -> tuple[int, int]:
    """Return time and size of a file, by which caches know that it has changed."""
    try:
        return path.stat().st_mtime_ns, path.stat().st_size
    except OSError:  # reading it reports the error
        return 0, 0


def display_path(path: Path) -> str:
    """Return a path for messages: `configs/...` for the files that come with coca_train."""
    try:
        return f"configs/{path.relative_to(config_dir())}"
    except ValueError:
        return str(path)


def choices(group: str, dirs: tuple[Path, ...]) -> dict[str, Path]:
    """Return the choices of a config group, by name. A leading underscore marks a part, which is no choice."""
    paths = [path for folder in reversed(dirs) for path in (folder / group).glob("[!_]*.yaml")]
    return dict(sorted({path.stem: path for path in paths}.items()))  # the first folder that has it wins


def folders_with(group: str, name: str) -> list[Path]:
    """Return the config folders that `data_prep mix` wrote next to its data and that have this choice."""
    data = Path(os.environ.get("COCA_TRAIN_DATA", "data"))
    return [folder for folder in sorted(data.glob("*/config")) if (folder / group / f"{name}.yaml").is_file()]


def runs_in(folder: Path) -> list[Path]:
    """Return the runs and the Hugging Face folders in a folder, the newest first."""
    held = [each for each in folder.glob("*") if (each / "checkpoints").is_dir() or (each / "config.json").is_file()]
    return sorted(held, key=lambda each: each.stat().st_mtime, reverse=True)


def summary(path: Path) -> str:
    """Return the first comment line of a YAML file, which describes the choice."""
    try:
        lines = untrusted_io.read_text(path, errors="replace").splitlines()
    except OSError:  # choosing it reports the error
        return ""
    for line in lines:
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").rstrip()
    return ""


@dataclass(frozen=True, eq=False)
class Registry(Generic[SettingsT]):
    """The modules of a folder that a section of a configuration may name."""

    folder: Path
    load: Callable[[str], ModuleType]  # imports the module of this name from the folder
    tag: str  # the key of the section that holds the name
    plugins: str  # group of entry points (`myscheme = "mypackage.myscheme"`)

    def names(self) -> list[str]:
        """Return the modules that a configuration may name, sorted. Raises UserError for a plugin that would hide one
        of the folder."""
        return sorted(self._points)

    def module(self, name: str) -> ModuleType:
        """Return the module of this name. Raises UserError when there is none, before anything is imported."""
        self.check(name)
        point = self._points[name]
        return self.load(name) if point is None else point.load()

    def check(self, name: str) -> None:
        """Raises UserError when there is no module of this name."""
        if name not in (known := self.names()):
            raise UserError(
                f"{name!r} is not one of {', '.join(known)}, and no installed package offers it (entry point "
                f"{self.plugins})"
            )

    def source(self, name: str) -> Path:
        """Return the file with the module's `Settings`."""
        if (point := self._points[name]) is not None:
            spec = find_spec(point.value)
            if spec is None or spec.origin is None:
                raise UserError(f"{name!r}: the entry point {point.value} of {self.plugins} is no module")
            return Path(spec.origin)
        file = self.folder / f"{name}.py"
        return file if file.is_file() else self.folder / name / "__init__.py"

    def digest(self, name: str) -> str:
        """Return a digest of the module's source without comments and docstrings, 12 digits."""
        tree = ast.parse(self.source(name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]

    def settings(self, value: object) -> SettingsT:
        """Type a mapping by the module that its key `tag` names; typed settings are returned unchanged.

        Returns that module's `Settings`. Raises UserError (no or unknown name) or pydantic's ValidationError.
        """
        if hasattr(value, self.tag):
            own: type[SettingsT] = self.module(getattr(value, self.tag)).Settings
            if isinstance(value, own):
                return value
        if not isinstance(value, dict):
            raise UserError(f"{value!r} is not a mapping with the key {self.tag!r}")
        if self.tag not in value:
            raise UserError(f"the key {self.tag!r} is missing; it names one of {', '.join(self.names())}")
        # As JSON: only there nested sections and tuples are typed strictly.
        return TypeAdapter(self.module(value[self.tag]).Settings).validate_json(json.dumps(value))

    @cached_property
    def _points(self) -> dict[str, EntryPoint | None]:
        """The entry point of each module, None of one in the folder. Listed once."""
        own = {path.stem for path in self.folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
        own = {name for name in own if not name.startswith("_")}
        plugins = {point.name: point for point in entry_points(group=self.plugins)}
        for name in sorted(own & plugins.keys()):  # runs that name it would compute something else unnoticed
            raise UserError(
                f"E-CFG-70 entry point {self.plugins}: {name} = {plugins[name].value}: coca_train ships one of this "
                "name. Fix: rename it in the package that offers it"
            )
        return dict.fromkeys(own) | plugins
