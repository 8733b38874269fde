"""What a message says to do, read as somebody would type it."""

import os
import re
import shlex
from importlib.metadata import version

from packaging.requirements import Requirement

WORD = re.compile(r"[+~]{0,2}[A-Za-z_][\w./<>]*(=.*|$)|--[a-z-]+|[\w./-]+")


def first(fix: str) -> list[str]:
    """Return the words of the first thing that a fix says to do, as a shell splits them."""
    text = re.split(r", | or |\?$|; | \(| and ", fix.removeprefix("did you mean "))[0]
    words = shlex.split(re.sub(r"^(remove it:|write|add|choose|pass|options have no dashes: write) ", "", text))
    assert words and all(map(WORD.fullmatch, words)), fix
    return [os.path.expandvars(word) for word in words]


def installed(fix: str) -> bool:
    """Whether this environment is one that a fix's `pip install` would leave as it is."""
    ((program, verb, required),) = [shlex.split(fix)]
    assert (program, verb) == ("pip", "install"), fix
    requirement = Requirement(required)
    return requirement.specifier.contains(version(requirement.name), prereleases=True)


def fix_of(message: object) -> str:
    """Return what stands after "Fix: " in a message or an error."""
    return str(message).rpartition("Fix: ")[2]


def option(word: str) -> str:
    """Return the option that a word of a command line sets."""
    return word.lstrip("+~").partition("=")[0].strip()


def options_in(fix: str) -> dict[str, str]:
    """Return the options that a fix sets, with their values, wherever they stand in its sentence."""
    return dict(re.findall(r"(?<![\w.])([a-z_][\w.]*)=(\w+)", fix))
