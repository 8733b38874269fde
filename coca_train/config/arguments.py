"""The words of a command line sorted into flags and overrides. No torch."""

import os
import re
import shlex
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from coca_train.runtime.errors import UserError

LAUNCHER_FLAG = re.compile(r"--local[-_]rank(?:=(\d+))?")  # what torch.distributed.launch and deepspeed add


@dataclass
class Arguments:
    """A command line, sorted."""

    words: list[str] = field(default_factory=list)  # all of it
    overrides: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)  # those without a value, such as --help
    config_dirs: tuple[Path, ...] = ()
    cfg: str = ""

    def again(self, command: str) -> str:
        """Return the command that runs it again. command: python -m <command>."""
        return f"python -m {command} {shlex.join(self.words)}".rstrip()


BARE = {name: name for name in ("--help", "--version", "--debug", "--multirun", "--results", "--markdown")}
BARE |= {"-h": "--help", "-m": "--multirun"}
WITH_VALUE = {"--cfg": "--cfg job", "-c": "--cfg job", "--config-dir": "--config-dir", "-cd": "--config-dir"}


def without_launcher_flags(argv: list[str]) -> list[str]:
    """Return the words of the user; the rank that a launcher adds goes into LOCAL_RANK, as torchrun has it."""
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if launcher := LAUNCHER_FLAG.fullmatch(word):
            os.environ.setdefault("LOCAL_RANK", launcher[1] or (rest.pop(0) if rest else "0"))
        else:
            words.append(word)
    return words


def read_arguments(argv: list[str], flags: tuple[str, ...]) -> Arguments:
    """Sort a command line. flags: those of the command, as messages list them. Raises UserError for any other."""
    arguments, rest = Arguments(list(argv)), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if BARE.get(word) in flags:
            arguments.flags.add(BARE[word])
        elif WITH_VALUE.get(name) in flags:
            value = value if equals else rest.pop(0) if rest else ""
            if WITH_VALUE[name] == "--config-dir":
                if not value or not Path(value).is_dir():
                    fix = "give a folder of YAML files"
                    raise UserError(f"E-CFG-15 command line {name} {value}: there is no such folder. Fix: {fix}")
                arguments.config_dirs += (Path(value).resolve(),)
            elif value != "job":
                raise UserError(f"E-CFG-38 command line {name} {value}: only job can be shown. Fix: write --cfg job")
            else:
                arguments.cfg = value
        elif word.startswith("-"):
            raise UserError(_unknown_flag(word, flags, rest[0] if rest else ""))
        else:
            arguments.overrides.append(word)
    return arguments


def _unknown_flag(word: str, flags: tuple[str, ...], following: str) -> str:
    """following: the next word, its value where an option is written as a flag (--position rope)."""
    from coca_train.config.messages import show

    name, equals, value = word.lstrip("-").partition("=")
    if not equals and "=" not in following and not following.startswith("-"):
        value = following
    option, known = name.replace("-", "_"), {*BARE, *WITH_VALUE}
    fix = f"flags are {', '.join(flags)}"
    if value and word.partition("=")[0] not in known:
        fix = f"options have no dashes: write {show(f'{option}={value}')}"
    elif close := get_close_matches(word, flags, n=1, cutoff=0.75):
        fix = f"did you mean {close[0]}?"
    return f"E-CFG-38 command line {show(word)}: there is no such flag. Fix: {fix}"
