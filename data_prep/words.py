"""What the words of `python -m data_prep` ask for."""

import sys
from difflib import get_close_matches
from importlib import import_module

from coca_train import __version__
from coca_train.config.command_line import read_arguments
from coca_train.config.messages import show
from coca_train.runtime.errors import UserError
from data_prep import verbs
from data_prep.help import VERBS, markdown, overview, verb_help
from data_prep.settings import load_with_yaml

FLAGS = ("--help", "--version", "--cfg job", "--config-dir", "--debug")


def answer(argv: list[str]) -> int | None:
    """Do it. Raises UserError."""
    first, *words = argv or ["--help"]
    if first in ("--help", "-h"):
        print(overview())
    elif first == "--version":
        print(f"coca_train {__version__}")
    elif first == "--markdown":
        sys.stdout.write(markdown())
    elif first not in VERBS:
        raise UserError(_no_such_verb(first))
    elif not VERBS[first].sections:
        return import_module(f"{verbs.__name__}.{first}").VERB.main(words)
    else:
        return _with_overrides(first, words)
    return 0


def _with_overrides(verb: str, words: list[str]) -> int | None:
    arguments = read_arguments(words, FLAGS)
    if "--help" in arguments.flags:
        print(verb_help(verb, arguments.overrides, arguments.config_dirs))
        return 0
    config, text = load_with_yaml(arguments.overrides, arguments.config_dirs)
    if arguments.cfg:
        print(text, end="")
        return 0
    return import_module(f"{verbs.__name__}.{verb}").run(config)


def _no_such_verb(word: str) -> str:
    close = get_close_matches(word.lstrip("-"), VERBS, n=1)
    if close:
        fix = f"write python -m data_prep {close[0]}"
    elif "=" in word or word.startswith("-"):
        fix = "write the verb first: python -m data_prep <verb> ..."
    else:
        fix = "see python -m data_prep"
    return f"E-CFG-38 command line {show(word)}: there is no such verb; verbs are {', '.join(VERBS)}. Fix: {fix}"
