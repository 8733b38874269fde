"""Hydra's part: which files make up the configuration, merged. Values from the command line come later.

Hydra is imported where files are merged: the help of a small command does not wait for it.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coca_train.config.files import choices, shown
from coca_train.config.messages import ConfigError, Problem, show
from coca_train.config.provenance import Sources, nodes, read, stop
from coca_train.config.root import Root


@dataclass
class Composed:
    """The merged files, and where each of their values stands."""

    tree: dict[str, Any]
    choices: dict[str, str]
    sources: Sources
    problems: list[Problem]


def compose(root: Root, groups: dict[str, str], dirs: tuple[Path, ...]) -> Composed:
    """Merge the files that the choices name. groups: config group -> option, all known to exist.

    Hydra takes a tenth of a second for it, and a sweep or a comparison asks for the same files many times; so what
    was merged is kept as long as no file changes.
    """
    if not root.groups:
        return _alone(root, dirs)
    state = tuple((path, *_stamp(path)) for path in _files_of(root, dirs))
    return deepcopy(_merged(root, tuple(groups.items()), dirs, state))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        return path.stat().st_mtime_ns, path.stat().st_size
    except OSError:  # reading it will say what is wrong
        return 0, 0


@lru_cache(maxsize=128)
def _merged(
    root: Root, groups: tuple[tuple[str, str], ...], dirs: tuple[Path, ...], state: tuple[tuple[Path, int, int], ...]
) -> Composed:
    """state: of every file that could be merged; where one changes, comes or goes, all are read again."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    unreadable = _scan(root, dirs)
    try:
        return _compose(root, dict(groups), dirs)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _not_yaml(error, unreadable) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise stop(
            Problem("E-CFG-15", (), show(str(error).splitlines()[0]), "mend the defaults list", "configs")
        ) from None


def _alone(root: Root, dirs: tuple[Path, ...]) -> Composed:
    """Without groups there is one file, and nothing to merge."""
    path, sources = dirs[0] / f"{root.name}.yaml", Sources()
    problems = read(path, "", sources)
    return Composed(yaml.safe_load(path.read_text(encoding="utf-8")), {}, sources, problems)


def _not_yaml(error: Exception, unreadable: list[ConfigError]) -> ConfigError:
    """Hydra met a file it could not read: the best that can be said about it."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or not Path(mark.name).is_file():
        return next(iter(unreadable), stop(Problem("E-CFG-13", (), show(str(error)), "mend the file", "configs")))
    for problem in read(Path(mark.name), "", Sources()):
        return stop(problem)  # a key that stands twice
    place = f"{shown(Path(mark.name))}:{mark.line + 1}"
    return stop(Problem("E-CFG-13", (), show(getattr(error, "problem", str(error))), "write plain YAML", place))


def _scan(root: Root, dirs: tuple[Path, ...]) -> list[ConfigError]:
    """Look at every file before Hydra expands any. A file that is too large stops here; others only when used."""
    unreadable = []
    for path in _files_of(root, dirs):
        try:
            nodes(path)
        except ConfigError as error:
            if error.problems[0].id == "E-CFG-14":
                raise
            unreadable.append(error)
    return unreadable


def _files_of(root: Root, dirs: tuple[Path, ...]) -> list[Path]:
    """Every YAML file that some choice could merge."""
    return [path for folder in dirs for group in ("", *root.groups) for path in sorted((folder / group).glob("*.yaml"))]


def _compose(root: Root, groups: dict[str, str], dirs: tuple[Path, ...]) -> Composed:
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from coca_train.config.hydra_internals import Files

    sources, problems = Sources(), []
    with initialize_config_dir(version_base="1.3", config_dir=str(dirs[0]), job_name="coca_train"):
        files = Files(dirs[1:])
        nested = [group for group in groups if "/" in group]
        outer = {group: option for group, option in groups.items() if group not in nested}
        offered = files.listed(root.name, _overrides(root, outer)) if nested else []
        for group in nested:
            if not any(path.startswith(f"{group}/") for path, _ in offered):
                problems.append(_no_such_axis(group, groups, offered, dirs))
            else:
                outer[group] = groups[group]
        merged = files.merged(root.name, _overrides(root, outer))
    for name, package in merged.files:
        file = next((folder / f"{name}.yaml" for folder in dirs if (folder / f"{name}.yaml").is_file()), None)
        problems += read(file, package, sources) if file else []
    tree = OmegaConf.to_container(merged.tree, resolve=False)
    assert isinstance(tree, dict)
    tree.pop("hydra", None)
    chosen = {group: option for group, option in merged.choices.items() if group in root.groups and option}
    return Composed({str(key): value for key, value in tree.items()}, chosen, sources, problems)


def _overrides(root: Root, groups: dict[str, str]) -> list[str]:
    """In Hydra's notation, which wants a plus where there is no default."""
    return [f"{'+' if group in root.without_default else ''}{group}={option}" for group, option in groups.items()]


def _no_such_axis(
    group: str, groups: dict[str, str], offered: list[tuple[str, str]], dirs: tuple[Path, ...]
) -> Problem:
    """`position=alibi position/frequencies=yarn`: the choice above has no such axis."""
    above, leaf = group.rsplit("/", 1)
    chosen = next(path.rsplit("/", 1)[1] for path, _ in offered if path.rsplit("/", 1)[0] == above)
    able = [name for name, path in choices(above, dirs).items() if f"- {leaf}:" in path.read_text(encoding="utf-8")]
    text = f"{above}={chosen} has no {leaf}; those that have are {', '.join(able)}"
    return Problem(
        "E-CFG-33",
        (),
        text,
        f"leave {group} away, or choose {above}={able[0]}",
        f"command line {group}={groups[group]}",
    )
