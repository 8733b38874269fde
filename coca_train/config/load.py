"""From YAML files and overrides to one frozen, checked configuration, in two passes.

Compose: files are merged (compose.py), then the command line, then stages and layer types are completed
(inheritance.py). Check: interpolations are resolved, with the values of the command line; sections are typed
(strict.py), and rules see typed sections only (rules.py). All problems are reported at once.
"""

import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic

import yaml

from coca_train.config.compose import Assembled, compose, describe_replaced
from coca_train.config.fields import Verbatim, fields_of
from coca_train.config.files import runs_in
from coca_train.config.inheritance import fill_defaults, part_problems, scale_warmups
from coca_train.config.messages import ConfigError, Problem, is_secret, secret_fix
from coca_train.config.overrides import apply_override, parse
from coca_train.config.places import fatal_error, note_places, read_yaml
from coca_train.config.root import ConfigT, Root
from coca_train.config.schema import Config
from coca_train.config.strict import explain_unknown_key, find_misplaced, type_sections
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError
from coca_train.runtime.trees import leaves, lookup

if TYPE_CHECKING:  # help without overrides does not wait for Hydra
    from hydra.core.override_parser.types import Override

FORMAT = 4  # of a run's config.yaml and run.json; another number for every change that an older program cannot read
_ALLOWED = re.compile(
    r"\$\{(?:oc\.env:(?P<env>COCA_TRAIN_[A-Z0-9_]+)(?:,(?P<default>[^${},]*))?|(?P<key>[A-Za-z_][\w.]*))\}"
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DEEPEST = 20


@dataclass(frozen=True)
class Loaded(Generic[ConfigT]):
    """A configuration, and the overrides it was composed with."""

    config: ConfigT  # of the root's schema
    tree: dict[str, object]  # the same in plain values, resolved
    overrides: list[str]
    notes: tuple[str, ...] = ()  # lines for the user

    @property
    def yaml(self) -> str:
        """The configuration as a user reads it."""
        return yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True)

    @property
    def record(self) -> str:
        """What a run directory keeps as config.yaml."""
        return f"format: {FORMAT}\n{self.yaml}"

    def log_notes(self) -> None:
        """Print its notes in the terminal."""
        for note in self.notes:
            dist.log(note)


def assemble(root: Root[ConfigT], overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Assembled[ConfigT]:
    """Compose files, choices and overrides into one plain tree. config_dirs: more folders with experiments and choices.
    Raises ConfigError for files that cannot be read."""
    dirs = root.dirs(config_dirs)
    parsed = parse(root, overrides, dirs)
    implied = root.implied_choices(parsed.groups, parsed.values)
    a = compose(root, implied | parsed.groups, dirs)
    a.overrides = list(overrides)
    a.has_implied_choices = bool(implied)
    if a.replaced and not implied:  # an implied choice was not typed, so it yields silently
        a.notes += describe_replaced(a.replaced)
    a.problems = [*parsed.problems, *a.problems]
    if root.derive is not None:
        root.derive(a, parsed.groups, lambda: _with_values(a, parsed.values))
    if root.schema is Config and any("max_steps" in word for word in overrides):  # resolving takes time
        a.notes += scale_warmups(a.tree, a.places, parsed.values, _with_values(a, parsed.values))
    a.examples = dict(leaves(a.tree))
    # In the order typed: a later word wins, and may set an option inside a section that an earlier one added.
    for override in parsed.values:
        a.problems += apply_override(a, override)
    fill_defaults(root, a.tree, a.places)  # of parts that the command line added
    return a


def _with_values(a: Assembled, values: list["Override"]) -> dict[str, object]:
    """Return a copy of the tree with the values of the command line, resolved; problems are reported later."""
    other = Assembled(a.root, deepcopy(a.tree), examples=a.examples)
    for override in values:
        apply_override(other, override)
    return resolve(other.tree)[0]


def load(a: Assembled[ConfigT], launch: bool = True) -> Loaded[ConfigT]:
    """Resolve, type, cross-check and freeze. Raises ConfigError with every problem and the place of its value.

    launch: also the rules about this machine and this launch.
    """
    root, fields = a.root, fields_of(a.root.schema)
    a.examples = a.examples or dict(leaves(a.tree))
    if wrong_level := find_misplaced(root, a.tree):
        a.problems += wrong_level
        raise ConfigError(a.problems, a.lines())
    written = a.tree
    a.tree, without_value = resolve(written)
    reported = {problem.keys[0] for problem in without_value}
    nowhere = [key for name in a.tree if name not in fields for key, _ in leaves(a.tree[name], name)]
    mistakes = [explain_unknown_key(root, key, a.examples) for key in nowhere if key not in reported]
    for name in (name for name in fields if name not in a.tree):
        mistakes.append(Problem("E-CFG-11", (name,), "the section is missing", f"restore {name} in the defaults list"))
    ordered = {name: a.tree[name] for name in fields if name in a.tree}
    typed, wrong = type_sections(root, ordered, a.examples, reported)
    mistakes += wrong
    if mistakes:  # a wrong value is reported where it was set, and not at every `${…}` that copies it
        links = {key: str(value)[2:-1] for key, value in leaves(written) if str(value).startswith("${")}
        blamed = {key for mistake in mistakes for key in mistake.keys}
        mistakes = [mistake for mistake in mistakes if links.get(mistake.keys[0]) not in blamed]
    a.problems += [*without_value, *mistakes, *root.check(typed, launch)]
    if not a.problems:
        config = root.schema(**typed)
        # Parts inherit from the run's own sections: while those are wrong, so is every part.
        a.problems += part_problems(root, config, launch) if isinstance(config, Config) else []
        if not a.problems:
            return Loaded(config, ordered, a.overrides, tuple(a.notes))
    raise ConfigError(a.problems, a.lines())


def load_saved(root: Root[ConfigT], path: Path) -> Loaded[ConfigT]:
    """Load a configuration that was saved as one file, through the same checks as a new one."""
    places: dict[str, str] = {}
    if not path.is_file():
        fix = f"write {held[0]}" if (held := runs_in(path.parent)) else "give the directory of a run"
        if (path.parent / "checkpoints").is_dir():
            fix = f"python -m coca_train verify run={path.parent}, which restores it from a checkpoint"
        raise fatal_error(Problem("E-CFG-15", (), "there is no such file", fix, str(path)))
    problems = note_places(path, "", places)
    tree = saved_settings(path)
    fill_defaults(root, tree, places)
    return load(Assembled(root, tree, places=places, problems=problems), launch=False)


def saved_settings(path: Path) -> dict[str, object]:
    """Read a run's config.yaml as plain values. Raises ConfigError for no such file, CheckpointError E-CKP-31."""
    if not (tree := read_yaml(path)):
        raise fatal_error(
            Problem("E-CFG-15", (), "this is not the configuration of a run", "restore the file", str(path))
        )
    check_format(path, tree)
    return {key: value for key, value in tree.items() if key != "format"}


def check_format(path: Path, record: Mapping[str, object]) -> None:
    """Refuse a run's record of another format. Raises CheckpointError E-CKP-31."""
    if (found := record.get("format", 1)) != FORMAT:
        raise CheckpointError(
            f"E-CKP-31 {path}: this run is of another version of coca_train (format {found}; this version reads "
            f"{FORMAT}). Fix: use that version, or begin another run: run.name=<another>"
        )


# A configuration may use two interpolations: ${section.option} and ${oc.env:COCA_TRAIN_…,default}. OmegaConf does not
# resolve them: no other resolver can be reached, and all mistakes are reported. They are resolved before typing, since
# `${train.seq_len}` is text where a number is needed.


class _WrongError(Exception):
    """Carries a Problem out of the recursion."""


def resolve(tree: Mapping[str, object]) -> tuple[dict[str, object], list[Problem]]:
    """Return a copy of `tree` without interpolations, and what is wrong: interpolations, secrets, missing values."""
    problems: list[Problem] = []

    def copy(value: object, key: str) -> object:
        if isinstance(value, dict):
            return {name: copy(part, f"{key}.{name}" if key else str(name)) for name, part in value.items()}
        if isinstance(value, list):
            return [copy(part, f"{key}.{i}") for i, part in enumerate(value)]
        if is_secret(key, value) and not isinstance(value, Verbatim):
            message = "this is a secret; a configuration is saved and logged"
            problems.append(Problem("E-SEC-02", (key,), message, secret_fix(key)))
        elif value == "???":
            problems.append(Problem("E-CFG-11", (key,), "it has no value yet", f"pass {key}=…"))
        try:
            return text(value, (key,)) if isinstance(value, str) else value
        except _WrongError as wrong:
            problems.append(wrong.args[0])
            return value

    def text(value: str, chain: tuple[str, ...]) -> object:
        if isinstance(value, Verbatim) or "${" not in value:
            return str(value)
        if whole := _ALLOWED.fullmatch(value):  # the value keeps its type, and a number in a variable is a number
            found = target(whole, chain)
            is_number = isinstance(found, str) and whole["env"] and _NUMBER.fullmatch(found)
            return json.loads(str(found)) if is_number else found
        if "${" in _ALLOWED.sub("", value):
            message = "this interpolation is not allowed; ${section.option} and ${oc.env:COCA_TRAIN_NAME,default} are"
            raise _WrongError(Problem("E-SEC-03", chain[:1], message, "write the value itself"))
        return _ALLOWED.sub(lambda match: str(target(match, chain)), value)

    def target(match: re.Match[str], chain: tuple[str, ...]) -> object:
        name, key = match["env"], match["key"]
        if name:
            if (value := os.environ.get(name, match["default"])) is None:
                message, fix = f"the environment variable {name} is not set", f"export {name}=…, or write the value"
                raise _WrongError(Problem("E-CFG-12", chain[:1], message, fix))
            return value
        if key in chain or len(chain) > _DEEPEST:
            message = f"interpolation in a circle: {' -> '.join([*chain, key])}"
            raise _WrongError(Problem("E-CFG-12", chain[:1], message, "write one value out"))
        try:
            value = lookup(tree, key)
        except KeyError:
            message, fix = f"${{{key}}} does not exist", f"set {key}, or write the value itself"
            raise _WrongError(Problem("E-CFG-12", chain[:1], message, fix)) from None
        if isinstance(value, (dict, list)):
            message = f"${{{key}}} is a {'section' if isinstance(value, dict) else 'list'}, not a value"
            raise _WrongError(Problem("E-CFG-12", chain[:1], message, "name one option"))
        return text(value, (*chain, key)) if isinstance(value, str) else value

    return {name: copy(value, name) for name, value in tree.items()}, problems
