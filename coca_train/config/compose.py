"""Compose: the files that choices name, merged by Hydra. Values of the command line come later (overrides.py).

Hydra merges files and nothing else here: it knows neither where a value stands nor more than its first error, so the
command line, interpolations and types are ours. No node of OmegaConf leaves this file: outside there are plain dicts.
Hydra is imported when files are merged, so that the help of a small command does not wait for it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coca_train.config.files import choices, shown, stamp
from coca_train.config.messages import Problem, is_secret, show
from coca_train.config.parts import fill, merge
from coca_train.config.places import fatal_error, nodes, place_of, read
from coca_train.config.root import Root
from coca_train.runtime import untrusted_io
from coca_train.runtime.trees import copied, leaves, section

MOST_KEYS = 6  # of one file that a note lists


@dataclass(frozen=True)
class Replaced:
    """A value of an experiment that has no effect, because the command line chooses its section."""

    word: str  # the choice, as typed
    key: str
    value: str
    place: str  # file:line

    @property
    def file(self) -> str:
        return self.place.rpartition(":")[0]


@dataclass
class Assembled:
    """A configuration in plain values, merged but not typed yet, and where each value stands."""

    root: Root
    tree: dict[str, Any]
    choices: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # by dotted key, the last file that set it, with its line
    problems: list[Problem] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)  # section, dotted -> its choice as the command line has it
    replaced: list[Replaced] = field(default_factory=list)
    examples: dict[str, Any] = field(default_factory=dict)  # by dotted key, the values before overrides
    typed: dict[str, str] = field(default_factory=dict)  # by dotted key, the values of the command line, as typed
    overrides: list[str] = field(default_factory=list)  # the words of the command line
    has_implied_choices: bool = False  # whether choices came along with the words (`Root.implied_choices`)
    notes: list[str] = field(default_factory=list)  # what differs from what files or words alone say

    def __post_init__(self) -> None:
        self.examples = self.examples or dict(leaves(self.tree))

    def lines(self) -> list[str]:
        """Return the problems as text, each with the value and the place of every key it is about."""
        values = {**dict(leaves(self.tree)), **self.typed}
        return [self._line(problem, values) for problem in dict.fromkeys(self.problems)]

    def _line(self, problem: Problem, values: dict[str, Any]) -> str:
        parts = []
        for key in problem.keys:
            value = f"={'***' if is_secret(key, values[key]) else show(values[key])}" if key in values else ""
            parts.append(f"{problem.place or self._place(key)} {key}{value}".lstrip())
        return f"{problem.id} {', '.join(parts) or problem.place}: {problem.message}. Fix: {problem.fix}"

    def _place(self, key: str) -> str:
        """Who set a key. For a value of a choice that was typed: the word, the file, and whose value it replaced."""
        if place := place_of(key, dict.fromkeys(self.typed, "command line")):
            return place
        place, word = place_of(key, self.places), place_of(key, self.chosen)
        if not word or not place:
            return place
        instead = next((f", in place of {each.place}" for each in self.replaced if each.key == key), "")
        return f"command line {word} ({place}{instead})"


def compose(root: Root, groups: Mapping[str, str], dirs: tuple[Path, ...]) -> Assembled:
    """Merge the files that the choices name. groups: config group -> option, all known to exist.

    A choice that was typed replaces its whole section, whatever an experiment says of it: a mixture of both would be
    neither. What the experiment would have said is kept in `replaced`.
    """
    if not root.groups:  # its schema has all its values
        a = Assembled(root, {})
        fill(root, a.tree, a.places)
        return a
    state = tuple((path, *stamp(path)) for path in _files_of(root, dirs))
    base = _merge(root, root.name, tuple((g, o) for g, o in groups.items() if g in root.global_groups), dirs, state)
    a = Assembled(root, copied(base.tree), dict(base.choices), dict(base.places), list(base.problems))
    typed = [group for group in groups if group not in root.global_groups]
    for group in sorted(typed, key=lambda group: group.count("/")):  # position before its axes
        above, _, axis = group.rpartition("/")
        parent = section(a.tree, above.replace("/", ".")) if above else a.tree
        if above and axis not in parent:
            a.problems.append(_no_such_axis(a, base, group, groups, dirs))
            continue
        part = _merge(root, f"{group}/{groups[group]}", (), dirs, state)
        key, word = group.replace("/", "."), f"{group}={groups[group]}"
        a.chosen[key] = word
        a.replaced += _replaced(a, base, group, word) if base.above else ()
        a.problems += part.problems
        a.choices = {g: o for g, o in a.choices.items() if not g.startswith(f"{group}/")} | part.choices
        a.choices[group] = groups[group]
        a.places = {each: place for each, place in a.places.items() if not _inside(each, key)} | part.places
        parent.pop(axis or group, None)
        a.tree = merge(a.tree, copied(part.tree), named={})
    fill(root, a.tree, a.places)
    a.examples = dict(leaves(a.tree))
    return a


@dataclass(frozen=True)
class _Merged:
    """What Hydra made of a file and all that its defaults list names. above: the files that set options from the top,
    as experiments do, in the order of merging."""

    tree: dict[str, Any]
    choices: dict[str, str]
    places: dict[str, str]
    problems: list[Problem]
    above: tuple[Path, ...]


# Hydra takes a tenth of a second, and a sweep or a comparison asks for the same files many times. state: path, time and
# size of every file that could be merged; where one changes, comes or goes, all are read again.
@lru_cache(maxsize=512)
def _merge(root: Root, name: str, groups: tuple[tuple[str, str], ...], dirs: tuple[Path, ...], state: Any) -> _Merged:
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from coca_train.config.hydra_internals import merge_files

    # Hydra wants a plus where there is no default.
    overrides = [f"{'+' if group in root.optional_groups else ''}{group}={option}" for group, option in groups]
    try:
        merged = merge_files(dirs, name, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error).splitlines()[0]
        for path in _files_of(root, dirs):  # Hydra sees no file where there is a pipe or a folder
            if any(path.match(f"{each}.yaml") for each in re.findall(r"'([\w/.-]+)'", text)):
                nodes(path)
        raise fatal_error(Problem("E-CFG-15", (), show(text), "mend the defaults list", "configs")) from None
    except yaml.MarkedYAMLError as error:  # what is YAML, and nothing that OmegaConf holds
        mark = error.problem_mark
        place = f"{shown(Path(mark.name))}:{mark.line + 1}" if mark else "configs"
        raise fatal_error(
            Problem("E-CFG-13", (), show(error.problem or str(error)), "write plain YAML", place)
        ) from None
    except ValueError as error:  # behind the errors above, which are such too
        line = re.search(r" in '(@.*)'$", str(error))  # a header that Hydra cannot read, of a file it does not name
        if line is None:
            raise
        text, fix = f"# {show(line[1])}: {show(str(error))}", "write # @package _global_ as the first line"
        raise fatal_error(Problem("E-CFG-15", (), text, fix, "configs")) from None
    places, problems, above = {}, [], []
    for each, package in merged.files:  # the last place noted for a key is the one that counts
        file = next((folder / f"{each}.yaml" for folder in dirs if (folder / f"{each}.yaml").is_file()), None)
        if file is not None:
            problems += read(file, package, places)
            above += [file] if not package and each != root.name else []
    tree = OmegaConf.to_container(merged.tree, resolve=False)
    assert isinstance(tree, dict)
    chosen = {
        group: option
        for group, option in merged.choices.items()
        if group in root.groups and option and not option.startswith("_")  # a part, which came along
    }
    tree = {str(key): value for key, value in tree.items() if key != "hydra"}
    return _Merged(tree, chosen, places, problems, tuple(above))


def _files_of(root: Root, dirs: tuple[Path, ...]) -> list[Path]:
    """Every YAML file that some choice could merge."""
    return [path for folder in dirs for group in ("", *root.groups) for path in sorted((folder / group).glob("*.yaml"))]


def _inside(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _replaced(a: Assembled, base: _Merged, group: str, word: str) -> Iterator[Replaced]:
    """What experiments say of a section that the command line chooses, and which choices inside it they make."""
    files = {shown(file) for file in base.above}
    for file in base.above:
        for chosen, line, option in _defaults(file):
            if chosen.startswith(f"{group}/"):
                yield Replaced(word, chosen, option, f"{shown(file)}:{line}")
    top, seen = group.replace("/", "."), set[str]()
    for leaf, value in leaves(section(a.tree, top), top):
        key = leaf if leaf in a.places else leaf.rpartition(".")[0]  # an element of a list; messages are about the list
        place = a.places.get(key, "")
        if place.rpartition(":")[0] in files and key not in seen:
            seen.add(key)
            hidden = key != leaf or value in ([], {}) or is_secret(key, value)
            yield Replaced(word, key, "…" if hidden else show(value), place)


def _defaults(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield group, line and option of each choice in a defaults list: `- override /position/rope_scaling: yarn`."""
    root = nodes(path)
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        for each in value.value if name.value == "defaults" and isinstance(value, yaml.SequenceNode) else ():
            for key, option in each.value if isinstance(each, yaml.MappingNode) else ():
                group = str(key.value).removeprefix("override ").strip().removeprefix("/")
                yield group, key.start_mark.line + 1, str(option.value)


def describe_replaced(replaced: list[Replaced]) -> list[str]:
    """Return a line for each choice: what does not apply because of it."""
    lines = []
    for word in dict.fromkeys(each.word for each in replaced):
        parts = []
        for file in dict.fromkeys(each.file for each in replaced if each.word == word):
            texts = [f"{each.key}={each.value}" for each in replaced if (each.word, each.file) == (word, file)]
            more = f" and {len(texts) - MOST_KEYS} more" if len(texts) > MOST_KEYS else ""
            parts.append(f"{', '.join(texts[:MOST_KEYS])}{more} of {file}")
        lines.append(f"choices   {word} is taken as it is; what does not apply: {'; '.join(parts)}")
    return lines


def _no_such_axis(
    a: Assembled, base: _Merged, group: str, groups: Mapping[str, str], dirs: tuple[Path, ...]
) -> Problem:
    """`position=alibi position/rope_scaling=yarn`: the choice above has no such axis."""
    above, leaf = group.rsplit("/", 1)
    lines = [
        f"{shown(file)}:{line}"
        for file in (*base.above[::-1], dirs[0] / f"{a.root.name}.yaml")
        for chosen, line, _ in _defaults(file)
        if chosen == above and above not in groups
    ]
    by = f", and {lines[0]} chooses it" if lines else ""
    texts = {name: untrusted_io.read_text(path, errors="replace") for name, path in choices(above, dirs).items()}
    able = [name for name, text in texts.items() if f"- {leaf}:" in text]
    text = f"{above}={a.choices[above]} has no {leaf}{by}; those that have are {', '.join(able)}"
    fix, place = f"omit {group}, or choose {above}={able[0]}", f"command line {group}={groups[group]}"
    return Problem("E-CFG-33", (), text, fix, place)
