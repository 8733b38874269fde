"""What all verbs have in common: flags, Hydra overrides, help and reference made from the schema."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coca_train import __version__
from coca_train.config.command_line import Arguments, read_arguments
from coca_train.config.fields import options
from coca_train.config.listing import assembled, choice_lines, option_lines, tables
from coca_train.config.load import Loaded, load
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
    help. written_out: makes overrides of short forms.
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
    reference: Reference | None = None

    def main(self, argv: list[str]) -> int | None:
        """Answer a command line. Raises UserError."""
        arguments = read_arguments(argv, self.flags)
        if "--version" in arguments.flags:
            print(f"coca_train {__version__}")
        elif ("--help" in arguments.flags and not arguments.hydra) or (self.needs_words and not argv):
            print(self.help_text(arguments))
        elif "--markdown" in arguments.flags and self.reference:
            sys.stdout.write(self.markdown())
        else:
            return self.answer(arguments)
        return 0

    def answer(self, arguments: Arguments) -> int | None:
        """Show the configuration, or run with it."""
        own, others = self._sorted(arguments)
        loaded = load(self.root, own, arguments.config_dirs if self.root.groups else ())
        if arguments.cfg:
            print(loaded.yaml, end="")
            return 0
        return self.run(loaded, replace(arguments, overrides=others))

    def help_text(self, arguments: Arguments) -> str:
        """All choices and options, with the values this command line gives them."""
        dirs = arguments.config_dirs if self.root.groups else ()
        shown = assembled(self.root, self._sorted(arguments)[0], dirs)
        choices = [*choice_lines(shown, dirs), ""] if self.root.groups else []
        return "\n".join([self.usage, *choices, *option_lines(shown), *(["", self.foot] if self.foot else [])])

    def markdown(self) -> str:
        """The page of docs/."""
        assert self.reference is not None
        made_by = f"Made by `python -m {self.root.command} --markdown`; do not edit."
        head = [f"# {self.reference.title}", "", made_by, self.reference.introduction, ""]
        return "\n".join([*head, *tables(assembled(self.root, []), self.reference.values)]) + "\n"

    def _sorted(self, arguments: Arguments) -> tuple[list[str], list[str]]:
        """Its own overrides, and the words that go on to a training."""
        words = self.written_out(arguments.overrides)
        keys = {option.key for option in options(self.root)}
        others = [word for word in words if word.partition("=")[0] not in keys and self.passes_on(word)]
        return [word for word in words if word not in others], others
