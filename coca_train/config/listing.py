"""Every choice and option of a configuration with its meaning and value: for a terminal, and for docs/. Torch-free."""

import textwrap
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from coca_train.config.compose import Assembled
from coca_train.config.fields import Option, module_options, options, sections
from coca_train.config.files import choices, summary
from coca_train.config.load import assemble
from coca_train.config.messages import ConfigError, show
from coca_train.config.root import Root
from coca_train.runtime.trees import leaves, lookup

WIDTH = 100
Rows = dict[str, list[tuple[Option, Any]]]  # section -> its options with their present values


def assembled(root: Root, overrides: list[str], dirs: tuple[Path, ...] = ()) -> Assembled:
    """The values to show. Types are not checked: help must work when the command would not."""
    found = assemble(root, overrides, dirs)
    if found.problems:
        raise ConfigError(found.problems, found.lines())
    return found


def rows(found: Assembled) -> Rows:
    """The options of every section with their values; `<name>` stands for the first source, stage or group."""
    listed: Rows = {name: [] for name in sections(found.root)}
    for option in options(found.root):
        key = next((k for k in _keys(found.tree) if fnmatch(k, option.key.replace("<name>", "*"))), option.key)
        try:
            value = lookup(found.tree, key)
        except KeyError:
            if "<name>" not in key:
                continue
            value = {}  # there is no part with a name yet
        listed[option.key.split(".")[0]].append((option, value))
    described = module_options(found.root)
    for section in _typed_by_modules(found.root):
        for key, value in leaves(found.tree[section], section):
            listed[section].append((Option(key, described.get(key, ""), ""), value))
    return listed


def _typed_by_modules(root: Root) -> list[str]:
    """Whole sections whose options are those of a module."""
    return [section for section in root.registries if "." not in section]


def _keys(tree: Any, prefix: str = "") -> list[str]:
    """Dotted keys of everything, sections before what is in them; a list is one value."""
    if not isinstance(tree, dict):
        return [prefix]
    inside = [key for name, value in tree.items() for key in _keys(value, f"{prefix}.{name}" if prefix else str(name))]
    return [prefix, *inside] if prefix else inside


def choice_lines(found: Assembled, dirs: tuple[Path, ...] = ()) -> list[str]:
    """The choices of every group, for a terminal; the chosen ones are marked. dirs: besides ours."""
    lines = ["CHOICES (group=choice; * is chosen)"]
    for group in found.root.groups:
        lines += ["", f"  {group}"]
        for name, path in choices(group, found.root.dirs(dirs)).items():
            mark = "*" if found.choices.get(group) == name else " "
            lines.append(f"   {mark} {name:<22} {_first(summary(path), found.root.command)}")
    return lines


def _first(text: str, command: str) -> str:
    """An experiment's first comment line is its command and what to expect; help has room for the latter."""
    return text.split("  ", 1)[-1].strip() if command in text and "  " in text else text


def option_lines(found: Assembled, of: Iterable[str] | None = None) -> list[str]:
    """The options with their values, for a terminal. of: these sections only."""
    listed, titles = rows(found), sections(found.root)
    shown = list(titles if of is None else of)
    alone = [section for section in shown if any(option.key == section for option, _ in listed[section])]
    kind = "option=value" if alone else "section.option=value"
    lines = [f"OPTIONS ({kind}; the value in front is the present one)", *([""] if alone else [])]
    for section in shown:
        lines += [] if section in alone else ["", f"  {section}: {titles[section]}"]
        for option, value in listed[section]:
            present, needs = ("", f"{option.needs}, to be given") if value == "???" else (show(value), option.needs)
            lines.append(f"    {option.key}={present}" + (f"   ({needs})" if needs else ""))
            lines += textwrap.wrap(option.description, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines


def tables(found: Assembled, values: str) -> list[str]:
    """All choices and options as Markdown. values: what to call the present values."""
    listed, titles = rows(found), sections(found.root)
    lines = ["## Choices"]
    for group in found.root.groups:
        lines += ["", f"### `{group}=`", "", "| choice | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(summary(path))} |" for name, path in choices(group, found.root.dirs()).items()]
    lines += ["", "## Options"]
    for section, title in titles.items():
        head = ["| option | " + values + " | what it is | needs |", "|---|---|---|---|"]
        lines += ["", f"### `{section}`", "", title, "", *head]
        lines += [
            f"| `{o.key}` | `{_cell(show(v))}` | {_cell(o.description)} | {_cell(o.needs)} |"
            for o, v in listed[section]
        ]
    if sections_of_modules := _typed_by_modules(found.root):
        shown = {option.key for section in sections_of_modules for option, _ in listed[section]}
        lines += ["", "Options of the other choices:", ""]
        lines += ["| option | what it is |", "|---|---|"]
        lines += [
            f"| `{key}` | {_cell(text)} |" for key, text in module_options(found.root).items() if key not in shown
        ]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
