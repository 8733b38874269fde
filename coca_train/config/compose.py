"""Compose: the files that choices name, merged by Hydra. Values of the command line come later (overrides.py).

Hydra only merges files: it does not tell where a value was set, and stops at its first error, so the command line,
interpolations and types are ours. OmegaConf's nodes become plain dicts in this file. Hydra is imported when files are
merged, so that the help of a small command does not wait for it.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Generic

import yaml

from coca_train.config.files import choices, display_path, file_state
from coca_train.config.inheritance import fill_defaults, merge
from coca_train.config.messages import Problem, is_secret, show
from coca_train.config.places import fatal_error, note_places, parse_nodes, place_of
from coca_train.config.root import ConfigT, Root
from coca_train.runtime import untrusted_io
from coca_train.runtime.trees import leaves, section

MOST_KEYS = 6  # of one file that a note lists


@dataclass(frozen=True)
class Replaced:
    """A value of an experiment without effect, because the command line chooses its section."""

    word: str  # the choice, as typed
    key: str
    value: str
    place: str  # file:line

    @property
    def file(self) -> str:
        return self.place.rpartition(":")[0]


@dataclass
class Assembled(Generic[ConfigT]):
    """A configuration in plain values, merged but not typed, and the place of each value."""

    root: Root[ConfigT]
    tree: dict[str, object]
    choices: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # by dotted key, the last file that set it, with its line
    problems: list[Problem] = field(default_factory=list)
    of_files: dict[str, str] = field(default_factory=dict)  # the choices before those of the command line
    chosen: dict[str, str] = field(default_factory=dict)  # section, dotted -> its choice as the command line has it
    replaced: list[Replaced] = field(default_factory=list)
    examples: dict[str, object] = field(default_factory=dict)  # by dotted key, the values before overrides
    typed: dict[str, str] = field(default_factory=dict)  # by dotted key, the values of the command line, as typed
    overrides: list[str] = field(default_factory=list)  # the words of the command line
    has_implied_choices: bool = False  # by `Root.implied_choices`
    notes: list[str] = field(default_factory=list)  # lines for the user

    def lines(self) -> list[str]:
        """Return the problems as text, each with the value and the place of its keys."""
        values, lines = {**dict(leaves(self.tree)), **self.typed}, []
        for problem in dict.fromkeys(self.problems):
            parts = []
            for key in problem.keys:
                value = f"={'***' if is_secret(key, values[key]) else show(values[key])}" if key in values else ""
                parts.append(f"{problem.place or self._place(key)} {key}{value}".lstrip())
            where = ", ".join(parts) or problem.place
            lines.append(f"{problem.id} {where}: {problem.message}. Fix: {problem.fix}")
        return lines

    def _place(self, key: str) -> str:
        """Return who set a key; for a value of a typed choice the word, the file, and the value it replaced."""
        if place := place_of(key, dict.fromkeys(self.typed, "command line")):
            return place
        place, word = place_of(key, self.places), place_of(key, self.chosen)
        if not word or not place:
            return place
        instead = next((f", in place of {each.place}" for each in self.replaced if each.key == key), "")
        return f"command line {word} ({place}{instead})"


def compose(root: Root[ConfigT], groups: Mapping[str, str], dirs: tuple[Path, ...]) -> Assembled[ConfigT]:
    """Merge the files that the choices name. groups: config group -> option, all known to exist.

    A typed choice replaces its whole section, and what an experiment sets there; those values are in `replaced`.
    """
    if not root.groups:  # its schema has all its values
        a = Assembled(root, {})
        fill_defaults(root, a.tree, a.places)
        return a
    state = tuple((path, *file_state(path)) for path in _files_of(root, dirs))
    base = _merge(root, root.name, tuple((g, o) for g, o in groups.items() if g in root.global_groups), dirs, state)
    a = Assembled(root, deepcopy(base.tree), dict(base.choices), dict(base.places), list(base.problems))
    a.of_files = dict(base.choices)
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
        others = {k: place for k, place in a.places.items() if k != key and not k.startswith(f"{key}.")}
        a.places = others | part.places
        parent.pop(axis or group, None)
        a.tree = merge(a.tree, deepcopy(part.tree), named={})
    fill_defaults(root, a.tree, a.places)
    a.examples = dict(leaves(a.tree))
    return a


@dataclass(frozen=True)
class _Merged:
    """A file merged with all that its defaults list names."""

    tree: dict[str, object]
    choices: dict[str, str]
    places: dict[str, str]
    problems: list[Problem]
    above: tuple[Path, ...]  # files that set options from the top, as experiments do, in the order of merging


# Hydra takes a tenth of a second, and a sweep loads the same files many times. state: path, time and size of every file
# that could be merged; when one changes, is added or removed, all are read again.
@lru_cache(maxsize=512)
def _merge(
    root: Root, name: str, groups: tuple[tuple[str, str], ...], dirs: tuple[Path, ...], state: object
) -> _Merged:
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
        for path in _files_of(root, dirs):  # for Hydra a pipe or a folder is no file
            if any(path.match(f"{each}.yaml") for each in re.findall(r"'([\w/.-]+)'", text)):
                parse_nodes(path)
        raise fatal_error(Problem("E-CFG-15", (), show(text), "mend the defaults list", "configs")) from None
    except yaml.MarkedYAMLError as error:  # YAML that OmegaConf cannot hold
        mark = error.problem_mark
        place = f"{display_path(Path(mark.name))}:{mark.line + 1}" if mark else "configs"
        raise fatal_error(
            Problem("E-CFG-13", (), show(error.problem or str(error)), "write plain YAML", place)
        ) from None
    except ValueError as error:  # after the errors above, which are ValueErrors too
        line = re.search(r" in '(@.*)'$", str(error))  # a header that Hydra cannot parse, in a file it does not name
        if line is None:
            raise
        text, fix = f"# {show(line[1])}: {show(str(error))}", "write # @package _global_ as the first line"
        raise fatal_error(Problem("E-CFG-15", (), text, fix, "configs")) from None
    places, problems, above = {}, [], []
    for each, package in merged.files:  # the last place noted for a key is the one that counts
        file = next((folder / f"{each}.yaml" for folder in dirs if (folder / f"{each}.yaml").is_file()), None)
        if file is not None:
            problems += note_places(file, package, places)
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


def _replaced(a: Assembled, base: _Merged, group: str, word: str) -> Iterator[Replaced]:
    """Yield the values and choices of experiments in a section that the command line chooses."""
    files = {display_path(file) for file in base.above}
    for file in base.above:
        for chosen, line, option in _defaults(file):
            if chosen.startswith(f"{group}/"):
                yield Replaced(word, chosen, option, f"{display_path(file)}:{line}")
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
    root = parse_nodes(path)
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        for each in value.value if name.value == "defaults" and isinstance(value, yaml.SequenceNode) else ():
            for key, option in each.value if isinstance(each, yaml.MappingNode) else ():
                group = str(key.value).removeprefix("override ").strip().removeprefix("/")
                yield group, key.start_mark.line + 1, str(option.value)


def describe_replaced(replaced: list[Replaced]) -> list[str]:
    """Return a line for each typed choice with the values that it replaces."""
    lines = []
    for word in dict.fromkeys(each.word for each in replaced):
        parts = []
        for file in dict.fromkeys(each.file for each in replaced if each.word == word):
            texts = [f"{each.key}={each.value}" for each in replaced if (each.word, each.file) == (word, file)]
            more = f" and {len(texts) - MOST_KEYS} more" if len(texts) > MOST_KEYS else ""
            parts.append(f"{', '.join(texts[:MOST_KEYS])}{more} of {file}")
        lines.append(f"choices   {word} replaces {'; '.join(parts)}")
    return lines


def _no_such_axis(
    a: Assembled, base: _Merged, group: str, groups: Mapping[str, str], dirs: tuple[Path, ...]
) -> Problem:
    """Explain `position=alibi position/rope_scaling=yarn`: the choice above has no such axis."""
    above, leaf = group.rsplit("/", 1)
    lines = [
        f"{display_path(file)}:{line}"
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
