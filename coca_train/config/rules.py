"""Rules between options: how they are registered and checked, and those that every configuration can use.

A rule is a function that takes valid sections and yields the problems between them. It is registered with the names of
those sections and with its scope:

* settings: true or false on any machine.
* launch: the processes of a launch. A saved run that is only read has none; `plan` checks for processes of its own.
* machine: this machine, its GPUs and packages.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from coca_train.config.messages import Problem

Scope = Literal["settings", "launch", "machine"]
LAUNCH: tuple[Scope, ...] = ("settings", "launch", "machine")
Function = TypeVar("Function", bound=Callable[..., Iterable[Problem]])

LONGEST_PATH, LONGEST_PART = 3500, 255  # [bytes] Linux allows 4,096 in all; below a run's folder others follow
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class World(NamedTuple):
    """The processes of a launch; a section to the rules that need it."""

    rank: int
    size: int
    local_rank: int


class Rules:
    """The rules of one kind of configuration, in the order of their messages."""

    def __init__(self) -> None:
        self._rules: list[tuple[tuple[str, ...], Scope, Callable[..., Iterable[Problem]]]] = []

    def rule(self, *sections: str, about: Scope = "settings") -> Callable[[Function], Function]:
        """Register a function as a rule over these sections, its arguments in this order."""

        def register(function: Function) -> Function:
            self._rules.append((sections, about, function))
            return function

        return register

    def check(self, sections: Mapping[str, object], launch: bool) -> list[Problem]:
        """Return the problems between sections. launch: of this launch and this machine too."""
        if not launch or not any("world" in names for names, _, _ in self._rules):
            return self.problems(sections, LAUNCH if launch else ("settings",))
        world, wrong = _launched()
        return wrong + self.problems({**sections, "world": world} if world else sections, LAUNCH)

    def problems(self, sections: Mapping[str, object], about: Collection[Scope]) -> list[Problem]:
        """Return the problems that the rules of these scopes find; a rule needs all of its sections."""
        found: list[Problem] = []
        for names, scope, function in self._rules:
            if scope in about and sections.keys() >= {*names}:
                found += function(*(sections[name] for name in names))
        return found


TRAINING = Rules()  # of a training: config/sizes.py, config/check.py, attention/rules.py, settings.py


def _launched() -> tuple[World | None, list[Problem]]:
    """Return the processes that the launcher's environment names, or what is wrong with it."""
    values = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    values |= {name: os.environ[name] for name in values if name in os.environ}
    text = ""
    for name, value in values.items():
        if not value.isdecimal() or (name == "WORLD_SIZE" and int(value) == 0):
            text = text or f"{name}={value!r} is not a rank or a size"
    if not text and int(values["RANK"]) >= int(values["WORLD_SIZE"]):
        text = f"RANK={values['RANK']} is not below WORLD_SIZE={values['WORLD_SIZE']}"
    if text:
        return None, [Problem("E-RUN-01", (), text, "start with torchrun, or unset them all", "environment")]
    return World(int(values["RANK"]), int(values["WORLD_SIZE"]), int(values["LOCAL_RANK"])), []


def names(section: str, mapping: Mapping[str, object]) -> list[Problem]:
    """Return a problem for each name that cannot be part of a file name."""
    text, fix = "this name goes into file names", "use letters, digits, '.', '_', '-', at most 100"
    return [Problem("E-CFG-29", (f"{section}.{name}",), text, fix) for name in mapping if not NAME.fullmatch(name)]


def paths(options: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each option (key -> value) that is no path, or that only a shell can expand."""
    wrong = []
    for key, path in options.items():
        if not path.strip() or not path.isprintable():
            wrong.append(Problem("E-CFG-29", (key,), "this is no path", f"give a folder or file name: {key}=…"))
        elif len(os.fsencode(path)) > LONGEST_PATH or any(len(os.fsencode(p)) > LONGEST_PART for p in path.split("/")):
            text = f"{len(os.fsencode(path)):,} bytes; a path has at most {LONGEST_PATH:,}, a name in it {LONGEST_PART}"
            wrong.append(Problem("E-CFG-29", (key,), text, f"give a shorter one: {key}=…"))
        elif path.startswith("~"):
            wrong.append(Problem("E-CFG-29", (key,), "~ means nothing here", f"write {key}=$HOME{path[1:]}"))
    return wrong
