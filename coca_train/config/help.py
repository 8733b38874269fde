"""`--help` and the reference in docs/: every option, its meaning, its value. Torch-free, so it is quick.

`python -m coca_train.config.help --markdown > docs/configuration.md`
"""

import sys
import textwrap
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from coca_train.config.fields import TYPED_BY_MODULE, Option, module_options, options, sections
from coca_train.config.files import GROUPS, choices, config_dir, summary
from coca_train.config.interpolate import leaves, lookup
from coca_train.config.load import Assembled, assemble
from coca_train.config.messages import ConfigError, show

USAGE = """\
Train a language model whose context reaches further than it was trained.

  python -m coca_train                                    the quickstart: some minutes on two CPU cores
  python -m coca_train position=rope optim.lr=3e-4        another choice, another value
  python -m coca_train position=coca position/frequencies=yarn
  python -m coca_train --multirun position=coca,rope      one run after the other
  python -m coca_train.schemes                            what each scheme is, costs and goes with
  torchrun --nproc-per-node 8 -m coca_train +experiment=coca_350m

  --cfg job          show the configuration, composed and checked, and stop
  --config-dir DIR   more YAML files: DIR/experiment/mine.yaml is then +experiment=mine
  --multirun, -m     run every combination of values separated by commas
  --debug            show the traceback of an error
  --info, --hydra-help, --version
"""
FOOT = (
    "A run lives in <run.root>/<run.name>; the same command goes on where it stopped. Reference: docs/configuration.md"
)
WIDTH = 100


def _assembled(overrides: list[str], dirs: tuple[Path, ...]) -> Assembled:
    """The values to show. Types are not checked: help must work when the run would not."""
    assembled = assemble(overrides, dirs)
    if assembled.problems:
        raise ConfigError(assembled.problems, assembled.lines())
    return assembled


def _rows(assembled: Assembled) -> dict[str, list[tuple[Option, Any]]]:
    """Section -> its options with their present values; `<name>` stands for the first source or stage."""
    rows: dict[str, list[tuple[Option, Any]]] = {name: [] for name in sections()}
    for option in options():
        section, tree, value = option.key.split(".")[0], assembled.tree, None
        key = next((k for k in _keys(tree) if fnmatch(k, option.key.replace("<name>", "*"))), option.key)
        try:
            value = lookup(tree, key)
        except KeyError:
            continue
        rows[section].append((option, value))
    described = module_options()
    for section in TYPED_BY_MODULE:
        for key, value in leaves(assembled.tree[section], section):
            rows[section].append((Option(key, described.get(key, ""), ""), value))
    return rows


def _keys(tree: Any, prefix: str = "") -> list[str]:
    """Dotted keys of everything that is no section; a list is one value."""
    if not isinstance(tree, dict):
        return [prefix]
    return [key for name, value in tree.items() for key in _keys(value, f"{prefix}.{name}" if prefix else str(name))]


def help_text(overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> str:
    """All choices and options, grouped by section, with the values this command line gives them."""
    dirs = (config_dir(), *config_dirs)
    assembled = _assembled(overrides, config_dirs)
    lines = [USAGE, "CHOICES (group=choice; * is chosen)"]
    for group in GROUPS:
        lines += ["", f"  {group}"]
        for name, path in choices(group, dirs).items():
            mark = "*" if assembled.choices.get(group) == name else " "
            lines.append(f"   {mark} {name:<22} {_first(summary(path))}")
    lines += ["", "OPTIONS (section.option=value; the value in front is the present one)"]
    rows, titles = _rows(assembled), sections()
    for section in titles:
        lines += ["", f"  {section}: {titles[section]}"]
        for option, value in rows[section]:
            lines.append(f"    {option.key}={show(value)}" + (f"   ({option.needs})" if option.needs else ""))
            lines += textwrap.wrap(option.description, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join([*lines, "", FOOT])


def _first(text: str) -> str:
    """An experiment's first comment line is its command and what to expect; help has room for the latter."""
    return text.split("  ", 1)[-1].strip() if "coca_train" in text and "  " in text else text


def markdown() -> str:
    """The reference in docs/configuration.md."""
    dirs = (config_dir(),)
    rows, titles = _rows(_assembled([], ())), sections()
    lines = [
        "# Configuration",
        "",
        "Made by `python -m coca_train.config.help --markdown`; do not edit.",
        "Values are those of the quickstart (`python -m coca_train` with nothing else).",
        "",
        "## Choices",
    ]
    for group in GROUPS:
        lines += ["", f"### `{group}=`", "", "| choice | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(summary(path))} |" for name, path in choices(group, dirs).items()]
    lines += ["", "## Options"]
    for section in titles:
        lines += [
            "",
            f"### `{section}`",
            "",
            titles[section],
            "",
            "| option | quickstart | what it is | needs |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{o.key}` | `{_cell(show(v))}` | {_cell(o.description)} | {_cell(o.needs)} |" for o, v in rows[section]
        ]
    shown = {option.key for section in TYPED_BY_MODULE for option, _ in rows[section]}
    others = {key: text for key, text in module_options().items() if key not in shown}
    lines += ["", "Options of other schemes, scalings and visibilities:", "", "| option | what it is |", "|---|---|"]
    lines += [f"| `{key}` | {_cell(text)} |" for key, text in others.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown() if "--markdown" in sys.argv else help_text([]) + "\n")
