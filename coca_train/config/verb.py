"""What all verbs have in common: flags, Hydra overrides, help and reference made from the schema."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coca_train import __version__
from coca_train.config.command_line import Arguments, read_arguments
from coca_train.config.fields import options
from coca_train.config.listing import assembled, choice_lines, option_lines, tables
from coca_train.config.load import Loaded, assemble, load
from coca_train.config.root import Root

FLAGS = ("--help", "--version", "--cfg job", "--debug")


@dataclass(frozen=True)
class Reference:
    """A page of docs/ with every choice and option. values: what it calls those it shows."""

    title: str
    introduction: str
    values: str


@dataclass(frozen=True)
class Verb:
    """A command.

    run: does it, with its configuration and the words that are for the training's (`passes_on`). usage, foot: how help
    begins and ends. goes_on: where the same command goes on after an interrupt. needs_words: without any, it shows its
    help. written_out: makes overrides of short forms. remembered: the words and, before them, what an earlier command
    line said and this one, with these folders of configs, leaves unsaid. answers: by flag, what is done in place of a
    run.
    """

    root: Root
    usage: str
    run: Callable[[Loaded, Arguments], int | None]
    foot: str = ""
    flags: tuple[str, ...] = FLAGS
    goes_on: str = "from the beginning"
    needs_words: bool = False
    passes_on: Callable[[str], bool] = lambda word: False
    written_out: Callable[[Sequence[str]], list[str]] = list
    remembered: Callable[[list[str], tuple[Path, ...]], list[str]] = lambda words, dirs: words
    reference: Reference | None = None
    answers: Mapping[str, Callable[[Arguments], int]] = field(default_factory=dict)

    def main(self, argv: list[str]) -> int | None:
        """Answer a command line. Raises UserError."""
        arguments = read_arguments(argv, self.flags)
        dirs = arguments.config_dirs if self.root.groups else ()
        # Its own options before what passes_on says: `compare run.root=x` is about its own run.root.
        own, words = {option.key for option in options(self.root)}, self.written_out(arguments.overrides)
        others = [word for word in words if word.partition("=")[0] not in own and self.passes_on(word)]
        words = [word for word in words if word not in others]
        if "--version" in arguments.flags:
            print(f"coca_train {__version__}")
        elif ("--help" in arguments.flags and not arguments.hydra) or (self.needs_words and not argv):
            print(self.help_text(words, dirs))
        elif "--markdown" in arguments.flags and self.reference:
            sys.stdout.write(self.markdown())
        elif answer := next((self.answers[flag] for flag in self.answers if flag in arguments.flags), None):
            return answer(arguments)
        else:
            # What is only shown is not launched here: a recipe for many GPUs can be read on a laptop.
            loaded = load(assemble(self.root, self.remembered(words, dirs), dirs), launch=not arguments.cfg)
            loaded.tell()
            if not arguments.cfg:
                return self.run(loaded, replace(arguments, overrides=others))
            print(loaded.yaml, end="")
        return 0

    def help_text(self, overrides: list[str], dirs: tuple[Path, ...] = ()) -> str:
        """All choices and options, with the values that these overrides give them."""
        shown = assembled(self.root, overrides, dirs)
        choices = [*choice_lines(shown, dirs), ""] if self.root.groups else []
        notes = [*shown.notes, ""] if shown.notes else []
        return "\n".join([self.usage, *notes, *choices, *option_lines(shown), *(["", self.foot] if self.foot else [])])

    def markdown(self) -> str:
        """The page of docs/."""
        assert self.reference is not None
        made_by = f"Made by `python -m {self.root.command} --markdown`; do not edit."
        head = [f"# {self.reference.title}", "", made_by, self.reference.introduction, ""]
        return "\n".join([*head, *tables(assembled(self.root, []), self.reference.values)]) + "\n"
