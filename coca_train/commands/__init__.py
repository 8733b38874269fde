"""`python -m coca_train <verb>`, `coca-train <verb>`: the verbs are the files of this folder.

An underscore in front marks a helper. A verb is imported when it is called: the help of one does not wait for another.
"""

import ast
import os
import re
import sys
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from coca_train.config.arguments import without_launcher_flags
from coca_train.runtime import machine, shutdown
from coca_train.runtime.entry import run
from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    from coca_train.config.verb import Verb

DEFAULT = "train"
RESUMING = (
    "atlas",
    "compare",
    "evaluate",
    "extend",
    "train",
)  # go on where they were; a scheduler may start them again by itself


def verbs() -> dict[str, Path]:
    """Return the file of each verb. `import_.py` is the verb `import`, which Python keeps for itself."""
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {path.stem.rstrip("_"): path for path in files}


def verb_of(name: str) -> "Verb":
    """Import the module of a verb and return its VERB."""
    return import_module(f"{__name__}.{verbs()[name].stem}").VERB


def overview() -> str:
    """Return every verb with the first line of its file, which says what it does."""
    lines = (f"  {name:<12} {_does(path)}" for name, path in verbs().items())
    return "\n".join(["VERBS (python -m coca_train <verb> --help; without a verb: train)", "", *lines])


def _does(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def entry(argv: list[str] | None = None) -> NoReturn:
    """Run the program and exit with its code. argv: from the verb on; None: the words of the command line."""
    argv = sys.argv[1:] if argv is None else argv
    # Before anything heavy is imported, which takes seconds, and many more from a network folder.
    if _verb(without_launcher_flags(argv)) in RESUMING:
        shutdown.begin()
    machine.limit_threads(os.environ)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # A lost peer makes torch print forty lines of addresses for each try, before its error is told in one.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    sys.exit(main(argv))


def _verb(words: list[str]) -> str:
    """What the words ask for; DEFAULT where they name none."""
    return words[0] if words and re.fullmatch(r"[a-z]+", words[0]) else DEFAULT


def _dispatch(argv: list[str]) -> int:
    # First, because a launcher puts its flag in front of the verb.
    words = without_launcher_flags(argv)
    name = _verb(words)
    if name not in verbs():
        raise UserError(_no_such_verb(name))
    if words[:1] == [name]:
        del words[0]
    elif {"--help", "-h"} & set(words):
        print(overview(), end="\n\n")
    verb = verb_of(name)
    return run(verb.main, words, verb.resumes_from)


main = partial(run, _dispatch)  # (argv: list[str] | None = None) -> exit code


def _no_such_verb(name: str) -> str:
    close = get_close_matches(name, verbs(), n=1)
    fix = f"write python -m coca_train {close[0]}" if close else "see python -m coca_train --help"
    return f"E-CFG-38 command line {name}: there is no such verb; verbs are {', '.join(verbs())}. Fix: {fix}"
