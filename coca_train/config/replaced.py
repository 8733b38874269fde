"""What a choice of the command line replaces: all that an experiment says of that section.

An experiment is merged last, over the choices; a choice that was typed would be a chimera of both. So files that set
options from the top say nothing of the sections that the command line chooses, and what they would have said is told.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from coca_train.config.files import shown
from coca_train.config.messages import is_secret, show
from coca_train.config.places import nodes
from coca_train.config.root import Root

MOST_KEYS = 6  # that a line lists of one file


@dataclass(frozen=True)
class Replaced:
    """A value of a file that a typed choice leaves without effect."""

    word: str  # the choice, as typed
    key: str
    value: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def chosen_sections(root: Root, groups: Mapping[str, str]) -> dict[str, str]:
    """The sections that choices of the command line fill, dotted -> the choice as typed."""
    return {
        group.replace("/", "."): f"{group}={option}" for group, option in groups.items() if group not in root.from_top
    }


def gives_way(root: Root, name: str) -> bool:
    """Whether a file that sets options from the top gives way to typed choices: an experiment and what it is made of,
    not the top file, and no choice of another group. name: from the folder of configs, without its ending."""
    group = name.rpartition("/")[0]
    return name != root.name and (group in root.from_top or group not in root.groups)


def within(key: str, sections: Collection[str]) -> str:
    """The outermost of the sections that a dotted key is or lies in; empty: none."""
    return min((each for each in sections if key == each or key.startswith(f"{each}.")), key=len, default="")


def values_replaced(path: Path, sections: Mapping[str, str]) -> list[Replaced]:
    """What a file says of these sections, and which choices inside them it makes."""
    found: list[Replaced] = []

    def note(key: str, node: yaml.Node, value: yaml.Node, section: str) -> None:
        text = show(value.value) if isinstance(value, yaml.ScalarNode) and not is_secret(key, value.value) else "…"
        found.append(Replaced(sections[section], key, text, shown(path), node.start_mark.line + 1))

    def walk(node: yaml.MappingNode, prefix: str) -> None:
        for name, value in node.value:
            key = f"{prefix}{name.value}"
            if isinstance(value, yaml.MappingNode) and value.value:
                walk(value, f"{key}.")
            elif section := within(key, sections):
                note(key, name, value, section)

    for group, name, value in _chosen(path):
        section = within(group.replace("/", "."), sections)
        if section and section != group.replace("/", "."):
            note(group, name, value, section)
    root = nodes(path)
    if isinstance(root, yaml.MappingNode):
        walk(yaml.MappingNode(root.tag, [pair for pair in root.value if pair[0].value != "defaults"]), "")
    return found


def chosen_at(path: Path, group: str) -> str:
    """The line of a file in which its defaults list chooses an option of a group; empty: it does not."""
    lines = [name.start_mark.line + 1 for each, name, _ in _chosen(path) if each == group]
    return f"{shown(path)}:{lines[0]}" if lines else ""


def _chosen(path: Path) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """(group, its node, the option's) of a defaults list: `- override /position/frequencies: yarn`."""
    root = nodes(path)
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        for each in value.value if name.value == "defaults" and isinstance(value, yaml.SequenceNode) else ():
            for key, option in each.value if isinstance(each, yaml.MappingNode) else ():
                yield str(key.value).removeprefix("override ").strip().removeprefix("/"), key, option


def told(replaced: Collection[Replaced]) -> list[str]:
    """A line for each choice: what does not apply because of it."""
    lines = []
    for word in dict.fromkeys(each.word for each in replaced):
        files: dict[str, list[Replaced]] = {}
        for each in replaced:
            if each.word == word:
                files.setdefault(each.file, []).append(each)
        parts = [f"{_listed(of_file)} of {file}" for file, of_file in files.items()]
        lines.append(f"choices   {word} is taken as it is; what does not apply: {'; '.join(parts)}")
    return lines


def _listed(replaced: list[Replaced]) -> str:
    texts = [f"{each.key}={each.value}" for each in replaced[:MOST_KEYS]]
    more = len(replaced) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")
