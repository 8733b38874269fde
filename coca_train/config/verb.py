"""A verb of the command line: its flags, overrides, and help and reference generated from the schema. No torch."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

from coca_train import __version__
from coca_train.config.arguments import Arguments, read_arguments
from coca_train.config.compose import Assembled
from coca_train.config.fields import Option, module_options, options, own_options, sections
from coca_train.config.files import choices, summary, use_folders
from coca_train.config.load import Loaded, assemble, load
from coca_train.config.messages import ConfigError, show
from coca_train.config.root import ConfigT, Root
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import leaves

WIDTH = 100  # of help
ABSENT = object()
Rows = dict[str, list[tuple[Option, object]]]  # section -> its options with their present values
FLAGS = ("--help", "--version", "--cfg job", "--debug")


@dataclass(frozen=True)
class Reference:
    """A page of docs/ with every choice and option."""

    title: str
    introduction: str
    values: str  # header of the column of values


@dataclass(frozen=True)
class Verb(Generic[ConfigT]):
    """A command."""

    root: Root[ConfigT]
    usage: str  # the beginning of its help
    run: Callable[[Loaded[ConfigT], Arguments], int | None]  # with its configuration, and the words for the training's
    foot: str = ""  # the end of its help
    flags: tuple[str, ...] = FLAGS
    resumes_from: str = "from the beginning"  # where the same command continues after an interrupt
    needs_words: bool = False  # without any, it shows its help
    is_for_training: Callable[[str], bool] = lambda word: False
    expand: Callable[[Sequence[str]], list[str]] = list  # short forms to overrides
    # (words, folders of configs) -> the words, after those of an earlier command line that still apply
    remembered: Callable[[list[str], tuple[Path, ...]], list[str]] = lambda words, dirs: words
    reference: Reference | None = None
    answers: Mapping[str, Callable[[Arguments], int]] = field(default_factory=dict)  # by flag, instead of `run`

    def main(self, argv: list[str]) -> int | None:
        """Run a command line. Raises UserError."""
        arguments = read_arguments(argv, self.flags)
        dirs = arguments.config_dirs if self.root.groups else ()
        use_folders(arguments.config_dirs)
        # Its own options first: `compare run.root=x` sets its own run.root.
        own, words = {option.key for option in options(self.root)}, self.expand(arguments.overrides)
        others = [word for word in words if word.partition("=")[0] not in own and self.is_for_training(word)]
        words = [word for word in words if word not in others]
        if "--version" in arguments.flags:
            print(f"coca_train {__version__}")
        elif "--help" in arguments.flags or (self.needs_words and not argv):
            print(self.help_text(words, dirs))
        elif "--markdown" in arguments.flags and self.reference:
            sys.stdout.write(self.markdown())
        elif answer := next((self.answers[flag] for flag in self.answers if flag in arguments.flags), None):
            return answer(arguments)
        else:
            if self.root.name != "train":
                check_given_once([*(word for word in words if word.partition("=")[0] in own), *self._exchanged(others)])
            # A configuration that is only shown is not launched: a recipe for many GPUs can be read on a laptop.
            loaded = load(assemble(self.root, self.remembered(words, dirs), dirs), launch=not arguments.cfg)
            loaded.log_notes()
            if not arguments.cfg:
                return self.run(loaded, replace(arguments, overrides=others))
            print(loaded.yaml, end="")
        return 0

    def _exchanged(self, others: list[str]) -> list[str]:
        """Return the words for the training's configuration, where they are for one model and not for a training."""
        return others if self.needs_words else []

    def help_text(self, overrides: list[str], dirs: tuple[Path, ...] = ()) -> str:
        """Return all choices and options, with their values under these overrides."""
        shown = assemble_valid(self.root, overrides, dirs)
        choices = [*choice_lines(shown, dirs), ""] if self.root.groups else []
        notes = [*shown.notes, ""] if shown.notes else []
        return "\n".join([self.usage, *notes, *choices, *option_lines(shown), *(["", self.foot] if self.foot else [])])

    def markdown(self) -> str:
        """Return the page of docs/."""
        assert self.reference is not None
        made_by = f"Made by `python -m {self.root.command} --markdown`; do not edit."
        head = [f"# {self.reference.title}", "", made_by, self.reference.introduction, ""]
        return "\n".join([*head, *tables(assemble_valid(self.root, []), self.reference.values)]) + "\n"


def check_given_once(words: Iterable[str]) -> None:
    """Raise UserError E-CFG-89 for an option with two values, such as run=a run=b.

    In a training the last one counts, as Hydra has it, so that a script can append words; here a run would be left out
    without a word.
    """
    given: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        if given.setdefault(key, word) != word:
            both = f"{show(given[key])} {show(word)}"
            raise UserError(f"E-CFG-89 command line {both}: {key} is given twice. Fix: leave out one of them")


def assemble_valid(root: Root, overrides: list[str], dirs: tuple[Path, ...] = ()) -> Assembled:
    """Compose the values to show. Types are not checked: help must work when the command would fail."""
    shown = assemble(root, overrides, dirs)
    if shown.problems:
        raise ConfigError(shown.problems, shown.lines())
    return shown


def rows(shown: Assembled) -> Rows:
    """Return the options of every section with their values; `<name>` is the first source, stage or group."""
    listed: Rows = {name: [] for name in sections(shown.root)}
    for option in options(shown.root):
        value: object = shown.tree
        for part in option.key.split("."):
            inside = value if isinstance(value, dict) else {}
            value = inside.get(next(iter(inside), "") if part == "<name>" else part, ABSENT)
        if value is not ABSENT or "<name>" in option.key:  # a section may be empty
            listed[option.key.split(".")[0]].append((option, {} if value is ABSENT else value))
    described = module_options(shown.root) | own_options(shown.root, shown.tree)
    for section in _typed_by_modules(shown.root):
        for key, value in leaves(shown.tree[section], section):
            listed[section].append((Option(key, described.get(key, ""), ""), value))
    return listed


def _typed_by_modules(root: Root) -> list[str]:
    """Return the whole sections whose options are those of a module."""
    return [section for section in root.registries if "." not in section]


def choice_lines(shown: Assembled, dirs: tuple[Path, ...] = ()) -> list[str]:
    """Return the choices of every group, for a terminal; the chosen ones are marked. dirs: in addition to ours."""
    lines = ["CHOICES (group=choice; * is chosen)"]
    for group in shown.root.groups:
        lines += ["", f"  {group}"]
        for name, path in choices(group, shown.root.dirs(dirs)).items():
            mark, text = "*" if shown.choices.get(group) == name else " ", summary(path)
            # An experiment's first comment line is its command and what to expect; help has room for the latter.
            if shown.root.command in text and "  " in text:
                text = text.split("  ", 1)[-1].strip()
            lines.append(f"   {mark} {name:<22} {text}")
    return lines


def option_lines(shown: Assembled, of: Iterable[str] | None = None) -> list[str]:
    """Return the options with their values, for a terminal. of: these sections only."""
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
    """Return all choices and options as Markdown. values: what to call the present values."""
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
