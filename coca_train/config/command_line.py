"""A command line, sorted: flags, then overrides. No torch here."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from coca_train.runtime.errors import UserError

LAUNCHER_FLAG = re.compile(r"--local[-_]rank(?:=(\d+))?")  # what torch.distributed.launch and deepspeed add


@dataclass
class Arguments:
    """A command line, sorted. `flags` are the bare ones, such as --help."""

    overrides: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    config_dirs: tuple[Path, ...] = ()
    cfg: str = ""
    hydra: list[str] = field(default_factory=list)  # what Hydra's own front end is asked


BARE = {
    "--help": "--help",
    "-h": "--help",
    "--version": "--version",
    "--debug": "--debug",
    "--multirun": "--multirun",
    "-m": "--multirun",
}
FOR_HYDRA = ("--hydra-help", "--info", "-i", "--shell-completion", "-sc")
# What a command takes, as messages list it.
TRAINING = ("--help", "--version", "--cfg job", "--config-dir", "--multirun", "--debug", "--info", "--hydra-help")


def read_arguments(argv: list[str], flags: tuple[str, ...] = TRAINING) -> Arguments:
    """Sort a command line. UserError for a flag that the command does not take."""
    found, rest = Arguments(), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        launcher = LAUNCHER_FLAG.fullmatch(word)
        if launcher:
            rank = launcher[1] or (rest.pop(0) if rest else "0")
            os.environ.setdefault("LOCAL_RANK", rank)
        elif BARE.get(word) in flags:
            found.flags.add(BARE[word])
        elif name in FOR_HYDRA and "--hydra-help" in flags:
            follows = not equals and rest and name in ("--info", "-i") and "=" not in rest[0]
            found.hydra += [word, rest.pop(0)] if follows else [word]
        elif name in ("--cfg", "-c", "--config-dir", "-cd"):
            value = value if equals else rest.pop(0) if rest else ""
            _with_value(found, name, value)
        elif word in ("--resolve", "--run", "-r"):
            pass  # what is shown is resolved, and running is what we do
        elif word.startswith("-"):
            raise UserError(_unknown_flag(word, flags))
        else:
            found.overrides.append(word)
    if "--help" in found.flags and any(override.startswith("hydra/help") for override in found.overrides):
        found.hydra.append("--help")
    return found


def _with_value(found: Arguments, name: str, value: str) -> None:
    if name in ("--cfg", "-c"):
        if value not in ("job", "hydra", "all"):
            raise UserError(f"E-CFG-38 command line {name} {value}: this shows job, hydra or all. Fix: write --cfg job")
        found.cfg = value
    elif not value or not Path(value).is_dir():
        raise UserError(
            f"E-CFG-15 command line {name} {value}: there is no such folder. Fix: give a folder of YAML files"
        )
    else:
        found.config_dirs += (Path(value).resolve(),)


def _unknown_flag(word: str, flags: tuple[str, ...]) -> str:
    from coca_train.config.messages import show

    option = word.lstrip("-")
    fix = (
        f"options have no dashes: {show(option)}"
        if "=" in option and "." in option
        else f"flags are {', '.join(flags)}"
    )
    return f"E-CFG-38 command line {show(word)}: there is no such flag. Fix: {fix}"
