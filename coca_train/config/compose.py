"""Hydra's part: which files make up the configuration, merged. Values from the command line come later.

Hydra merges files and nothing else here: it knows neither where a value stands nor more than its first error, so the
command line, interpolations and types are ours. No node of OmegaConf leaves this file: outside there are plain dicts.
It is imported where files are merged: the help of a small command does not wait for it.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from coca_train.config.files import choices, shown, stamp
from coca_train.config.messages import ConfigError, Problem, is_secret, show
from coca_train.config.places import nodes, place_of, plain, read, stop
from coca_train.config.replaced import Replaced, chosen_at, chosen_sections, gives_way, values_replaced, within
from coca_train.config.root import Root
from coca_train.runtime import outside
from coca_train.runtime.trees import copied, leaves


@dataclass
class Assembled:
    """A configuration in plain values, merged but not typed yet, and where each value stands."""

    root: Root
    tree: dict[str, Any]
    choices: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # by dotted key, the last file that set it, with its line
    problems: list[Problem] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)  # section, dotted -> its choice as the command line has it
    replaced: list[Replaced] = field(default_factory=list)  # what does not apply, because of choices that were typed
    examples: dict[str, Any] = field(default_factory=dict)  # by dotted key, the values before overrides
    typed: dict[str, str] = field(default_factory=dict)  # by dotted key, the values of the command line, as typed
    overrides: list[str] = field(default_factory=list)  # the words of the command line
    comes_along: bool = False  # whether choices came along with the words (`Root.implied`)
    notes: list[str] = field(default_factory=list)  # what is otherwise than files or words alone would have it

    def __post_init__(self) -> None:
        self.examples = self.examples or dict(leaves(self.tree))

    def lines(self) -> list[str]:
        """The problems as text, each with the value and the place of every key it is about."""
        values = {**dict(leaves(self.tree)), **self.typed}
        return [self._line(problem, values) for problem in dict.fromkeys(self.problems)]

    def _line(self, problem: Problem, values: dict[str, Any]) -> str:
        parts = []
        for key in problem.keys:
            value = f"={'***' if is_secret(key, values[key]) else show(values[key])}" if key in values else ""
            parts.append(f"{problem.place or self._place(key)} {key}{value}".lstrip())
        return f"{problem.id} {', '.join(parts) or problem.place}: {problem.message}. Fix: {problem.fix}"

    def _place(self, key: str) -> str:
        """Who set a key. Of what stands in the file of a choice that was typed: the word, the file, and whose value the
        word replaced."""
        if place := place_of(key, dict.fromkeys(self.typed, "command line")):
            return place
        place, word = place_of(key, self.places), place_of(key, self.chosen)
        if not word or not place:
            return place
        instead = next((f", in place of {each.place}" for each in self.replaced if each.key == key), "")
        return f"command line {word} ({place}{instead})"


def compose(root: Root, groups: dict[str, str], dirs: tuple[Path, ...]) -> Assembled:
    """Merge the files that the choices name. groups: config group -> option, all known to exist.

    Hydra takes a tenth of a second for it, and a sweep or a comparison asks for the same files many times; so what
    was merged is kept as long as no file changes.
    """
    if not root.groups:  # one file, and nothing to merge
        path, places = dirs[0] / f"{root.name}.yaml", {}
        problems = read(path, "", places)
        return Assembled(root, plain(path), {}, places, problems)
    state = tuple((path, *stamp(path)) for path in _files_of(root, dirs))
    # Copies: what is kept is the next one's too, and this one is about to be changed.
    tree, chosen, places, problems, replaced = _merged(root, tuple(groups.items()), dirs, state)
    words = chosen_sections(root, groups)
    return Assembled(root, copied(tree), chosen.copy(), places.copy(), problems.copy(), words, replaced.copy())


# tree, choices, places, problems, what was replaced
_Merged = tuple[dict[str, Any], dict[str, str], dict[str, str], list[Problem], list[Replaced]]


@lru_cache(maxsize=128)
def _merged(
    root: Root, groups: tuple[tuple[str, str], ...], dirs: tuple[Path, ...], state: tuple[tuple[Path, int, int], ...]
) -> _Merged:
    """state: of every file that could be merged; where one changes, comes or goes, all are read again."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    unreadable = _scan(root, dirs)
    try:
        return _compose(root, dict(groups), dirs)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _not_yaml(error, unreadable) from None
    except (HydraException, OmegaConfBaseException) as error:
        # Hydra sees no file where there is a pipe or a folder.
        if known := next((each for each in unreadable if _names(str(error), each)), None):
            raise known from None
        text = show(str(error).splitlines()[0])
        raise stop(Problem("E-CFG-15", (), text, "mend the defaults list", "configs")) from None
    except ValueError as error:  # behind the errors above, which are such too
        if unreadable:  # a value that is not what its tag says
            raise unreadable[0] from None
        line = re.search(r" in '(@.*)'$", str(error))  # a header that Hydra cannot read, of a file it does not name
        if line is None:
            raise
        text, fix = f"# {show(line[1])}: {show(str(error))}", "write # @package _global_ as the first line"
        raise stop(Problem("E-CFG-15", (), text, fix, "configs")) from None


def _names(text: str, unreadable: ConfigError) -> bool:
    """Whether a message of Hydra is about a file that could not be read."""
    path = unreadable.problems[0].place.removesuffix(".yaml")
    return any(path.endswith(f"/{name}") for name in re.findall(r"'([^']+)'", text.splitlines()[0]))


def _not_yaml(error: Exception, unreadable: list[ConfigError]) -> ConfigError:
    """Hydra met a file it could not read: the best that can be said about it."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or not Path(mark.name).is_file():
        return next(iter(unreadable), stop(Problem("E-CFG-13", (), show(str(error)), "mend the file", "configs")))
    if problems := read(Path(mark.name), "", {}):  # a key that stands twice
        return stop(problems[0])
    place = f"{shown(Path(mark.name))}:{mark.line + 1}"
    return stop(Problem("E-CFG-13", (), show(getattr(error, "problem", str(error))), "write plain YAML", place))


def _scan(root: Root, dirs: tuple[Path, ...]) -> list[ConfigError]:
    """Look at every file before Hydra expands any: ten lines of nested aliases are gigabytes once they are expanded.

    A file that is too large stops here; others only when they are used.
    """
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


def _compose(root: Root, groups: dict[str, str], dirs: tuple[Path, ...]) -> _Merged:
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from coca_train.config.hydra_internals import Files

    places, problems, replaced = {}, [], []
    typed = chosen_sections(root, groups)
    # Hydra keeps what it was initialized with in a global. The `with` puts back what was there, so that a program with
    # a Hydra of its own can load our configurations.
    with initialize_config_dir(version_base="1.3", config_dir=str(dirs[0]), job_name="coca_train"):
        files = Files(dirs[1:], typed, partial(gives_way, root))
        nested = [group for group in groups if "/" in group]
        outer = {group: option for group, option in groups.items() if group not in nested}
        # An axis of a choice (position/frequencies) exists where the choice above brings it; Hydra would say of any
        # other only that it could not override.
        offered = files.listed(root.name, _overrides(root, outer)) if nested else []
        for group in nested:
            if not any(path.startswith(f"{group}/") for path, _ in offered):
                problems.append(_no_such_axis(group, groups, offered, dirs))
            else:
                outer[group] = groups[group]
        merged = files.merged(root.name, _overrides(root, outer))
    for name, package in merged.files:  # in the order of merging: the last place noted for a key is the one that counts
        if (file := _file_of(name, dirs)) is None:
            continue
        own: dict[str, str] = {}
        problems += read(file, package, own)
        if not package and gives_way(root, name):
            replaced += values_replaced(file, typed)
            own = {key: place for key, place in own.items() if not within(key, typed)}
        places |= own
    tree = OmegaConf.to_container(merged.tree, resolve=False)
    assert isinstance(tree, dict)
    tree.pop("hydra", None)
    chosen = {
        group: option
        for group, option in merged.choices.items()
        if group in root.groups and option and not option.startswith("_")  # a part, which came along
    }
    return {str(key): value for key, value in tree.items()}, chosen, places, problems, replaced


def _file_of(name: str, dirs: tuple[Path, ...]) -> Path | None:
    return next((folder / f"{name}.yaml" for folder in dirs if (folder / f"{name}.yaml").is_file()), None)


def _overrides(root: Root, groups: dict[str, str]) -> list[str]:
    """In Hydra's notation, which wants a plus where there is no default."""
    return [f"{'+' if group in root.without_default else ''}{group}={option}" for group, option in groups.items()]


def _no_such_axis(
    group: str, groups: dict[str, str], offered: list[tuple[str, str]], dirs: tuple[Path, ...]
) -> Problem:
    """`position=alibi position/frequencies=yarn`: the choice above has no such axis."""
    above, leaf = group.rsplit("/", 1)
    chosen = next(path.rsplit("/", 1)[1] for path, _ in offered if path.rsplit("/", 1)[0] == above)
    files = (_file_of(name, dirs) for name, _ in reversed(offered) if above not in groups)
    by = next(filter(None, (chosen_at(file, above) for file in files if file)), "")
    texts = {name: outside.read_text(path, errors="replace") for name, path in choices(above, dirs).items()}
    able = [name for name, text in texts.items() if f"- {leaf}:" in text]
    text = f"{above}={chosen} has no {leaf}{by and f', and {by} chooses it'}; those that have are {', '.join(able)}"
    fix, place = f"leave {group} away, or choose {above}={able[0]}", f"command line {group}={groups[group]}"
    return Problem("E-CFG-33", (), text, fix, place)
