"""Every choice and option of a configuration with its meaning and value: for a terminal, and for docs/. Torch-free."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coca_train.config.compose import Assembled
from coca_train.config.fields import Option, module_options, options, sections
from coca_train.config.files import choices, summary
from coca_train.config.load import assemble
from coca_train.config.messages import ConfigError, show
from coca_train.config.root import Root
from coca_train.runtime.trees import leaves

WIDTH = 100
ABSENT: Any = ()
Rows = dict[str, list[tuple[Option, Any]]]  # section -> its options with their present values


def assembled(root: Root, overrides: list[str], dirs: tuple[Path, ...] = ()) -> Assembled:
    """The values to show. Types are not checked: help must work when the command would not."""
    shown = assemble(root, overrides, dirs)
    if shown.problems:
        raise ConfigError(shown.problems, shown.lines())
    return shown


def rows(shown: Assembled) -> Rows:
    """The options of every section with their values; `<name>` stands for the first source, stage or group."""
    listed: Rows = {name: [] for name in sections(shown.root)}
    for option in options(shown.root):
        value: Any = shown.tree
        for part in option.key.split("."):
            name = next(iter(value), None) if part == "<name>" else part
            value = value.get(name) if isinstance(value, dict) and name in value else ABSENT
        if value is not ABSENT or "<name>" in option.key:  # there may be no part with a name yet
            listed[option.key.split(".")[0]].append((option, {} if value is ABSENT else value))
    described = module_options(shown.root)
    for section in _typed_by_modules(shown.root):
        for key, value in leaves(shown.tree[section], section):
            listed[section].append((Option(key, described.get(key, ""), ""), value))
    return listed


def _typed_by_modules(root: Root) -> list[str]:
    """Whole sections whose options are those of a module."""
    return [section for section in root.registries if "." not in section]


def choice_lines(shown: Assembled, dirs: tuple[Path, ...] = ()) -> list[str]:
    """The choices of every group, for a terminal; the chosen ones are marked. dirs: besides ours."""
    lines = ["CHOICES (group=choice; * is chosen)"]
    for group in shown.root.groups:
        lines += ["", f"  {group}"]
        for name, path in choices(group, shown.root.dirs(dirs)).items():
            mark = "*" if shown.choices.get(group) == name else " "
            lines.append(f"   {mark} {name:<22} {_first(summary(path), shown.root.command)}")
    return lines


def _first(text: str, command: str) -> str:
    """An experiment's first comment line is its command and what to expect; help has room for the latter."""
    return text.split("  ", 1)[-1].strip() if command in text and "  " in text else text


def option_lines(shown: Assembled, of: Iterable[str] | None = None) -> list[str]:
    """The options with their values, for a terminal. of: these sections only."""
    listed, titles = rows(shown), sections(shown.root)
    chosen = list(titles if of is None else of)
    alone = [section for section in chosen if any(option.key == section for option, _ in listed[section])]
    kind = "option=value" if alone else "section.option=value"
    lines = [f"OPTIONS ({kind}; the value in front is the present one)", *([""] if alone else [])]
    for section in chosen:
        lines += [] if section in alone else ["", f"  {section}: {titles[section]}"]
        for option, value in listed[section]:
            present, needs = ("", f"{option.needs}, to be given") if value == "???" else (show(value), option.needs)
            lines.append(f"    {option.key}={present}" + (f"   ({needs})" if needs else ""))
            lines += textwrap.wrap(option.description, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines


def tables(shown: Assembled, values: str) -> list[str]:
    """All choices and options as Markdown. values: what to call the present values."""
    listed, titles = rows(shown), sections(shown.root)
    lines = ["## Choices"]
    for group in shown.root.groups:
        lines += ["", f"### `{group}=`", "", "| choice | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(summary(path))} |" for name, path in choices(group, shown.root.dirs()).items()]
    lines += ["", "## Options"]
    for section, title in titles.items():
        head = ["| option | " + values + " | what it is | needs |", "|---|---|---|---|"]
        lines += ["", f"### `{section}`", "", title, "", *head]
        lines += [
            f"| `{o.key}` | `{_cell(show(v))}` | {_cell(o.description)} | {_cell(o.needs)} |"
            for o, v in listed[section]
        ]
    if sections_of_modules := _typed_by_modules(shown.root):
        before = {option.key for section in sections_of_modules for option, _ in listed[section]}
        lines += ["", "Options of the other choices:", ""]
        lines += ["| option | what it is |", "|---|---|"]
        lines += [
            f"| `{key}` | {_cell(text)} |" for key, text in module_options(shown.root).items() if key not in before
        ]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
