"""From YAML files and overrides to one frozen, checked configuration. Hydra is used in this package only.

The order matters. Files are merged first (Hydra), then the command line, which wins; then named parts get what they
leave out, from their template and from the files of the choices they name; then interpolations are resolved, so that
`${train.seq_len}` is what the command line made of it; only then is anything typed, and the rules between options see
typed sections only. Problems of all steps are collected, and the user reads all of them at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coca_train.config.compose import Assembled, compose
from coca_train.config.fields import fields_of
from coca_train.config.files import config_dir, runs_in
from coca_train.config.interpolate import resolve
from coca_train.config.messages import ConfigError, Problem
from coca_train.config.overrides import apply, parse
from coca_train.config.parts import fill, part_problems
from coca_train.config.places import plain, read, stop
from coca_train.config.replaced import told
from coca_train.config.root import Root
from coca_train.config.shorter import shorten
from coca_train.config.strict import misplaced, type_sections, unknown
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError
from coca_train.runtime.trees import copied, leaves

FORMAT = 2  # of a run's config.yaml and run.json; another number for every change that an older program cannot read


@dataclass(frozen=True)
class Loaded:
    """A run's configuration, and the words it was made from."""

    config: Any  # of the root's schema
    tree: dict[str, Any]  # the same in plain values, resolved
    overrides: list[str]
    notes: tuple[str, ...] = ()  # what the user is to be told of it, a line each

    @property
    def yaml(self) -> str:
        """The configuration as a user reads it."""
        return yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True)

    @property
    def record(self) -> str:
        """What a run directory keeps as config.yaml."""
        return f"format: {FORMAT}\n{self.yaml}"

    def tell(self) -> None:
        """Say its notes in the terminal, once."""
        for note in self.notes:
            dist.log(note)


def assemble(root: Root, overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Assembled:
    """Files, choices and overrides as one plain tree. config_dirs: further folders with experiments and group choices.
    Raises ConfigError for files that cannot be read."""
    dirs = root.dirs(config_dirs)
    parsed = parse(root, overrides, dirs)
    implied = root.implied(parsed.groups, parsed.values)
    a = compose(root, implied | parsed.groups, dirs)
    a.overrides = list(overrides)
    a.comes_along = bool(implied)
    if not implied:  # nobody asked for what comes along: it gives way without a word
        a.notes += told(a.replaced)
    a.problems = [*parsed.problems, *a.problems]
    fill(root, a.tree, a.places, dirs)  # before overrides too: what a template brings is there, and `+` is refused
    if root.brings is not None:
        root.brings(a, parsed.groups, lambda: _typed(a, parsed.values))
    if root.staged and any("max_steps" in word for word in overrides):  # resolving takes time
        shorten(a, parsed.values, _typed(a, parsed.values))
    a.examples = dict(leaves(a.tree))
    # In the order typed: a later word wins over an earlier one, and may set inside what that one brought.
    for override in parsed.values:
        a.problems += apply(a, override)
    fill(root, a.tree, a.places, dirs)  # parts and choices that the command line brought
    return a


def _typed(a: Assembled, values: list[Any]) -> dict[str, Any]:
    """The tree as the command line has it, resolved, by itself; what is wrong with it is told when it is loaded."""
    other = Assembled(a.root, copied(a.tree))
    for override in values:
        apply(other, override)
    return resolve(other.tree)[0]


def load(a: Assembled, launch: bool = True) -> Loaded:
    """Resolve, type, cross-check and freeze. Raises ConfigError, which names every problem and who set the value.

    launch: also the rules about this machine and this launch.
    """
    root, fields = a.root, fields_of(a.root.schema)
    if wrong_level := misplaced(root, a.tree):
        a.problems += wrong_level
        raise ConfigError(a.problems, a.lines())
    written = a.tree
    a.tree, without_value = resolve(written)
    reported = {problem.keys[0] for problem in without_value}
    nowhere = [key for name in a.tree if name not in fields for key, _ in leaves(a.tree[name], name)]
    mistakes = [unknown(root, key, a.examples) for key in nowhere if key not in reported]
    for name in (name for name in fields if name not in a.tree):
        mistakes.append(Problem("E-CFG-11", (name,), "the section is missing", f"restore {name} in the defaults list"))
    ordered = {name: a.tree[name] for name in fields if name in a.tree}
    typed, wrong = type_sections(root, ordered, a.examples, reported)
    mistakes += wrong
    if mistakes:  # a value that is wrong is blamed where it was set, and not at every `${…}` that copies it
        links = {key: value[2:-1] for key, value in leaves(written) if str(value).startswith("${")}
        blamed = {key for mistake in mistakes for key in mistake.keys}
        mistakes = [mistake for mistake in mistakes if links.get(mistake.keys[0]) not in blamed]
    a.problems += [*without_value, *mistakes, *root.check(typed, launch)]
    if not a.problems:
        config = root.schema(**typed)
        # Parts stand over the run's own sections: while those are wrong, so would be every part.
        a.problems += part_problems(root, config, launch) if root.staged else []
        if not a.problems:
            return Loaded(config, ordered, a.overrides, tuple(a.notes))
    raise ConfigError(a.problems, a.lines())


def load_saved(root: Root, path: Path) -> Loaded:
    """A configuration that was saved as one file, through the same checks as a new one."""
    places: dict[str, str] = {}
    if not path.is_file():
        fix = f"write {held[0]}" if (held := runs_in(path.parent)) else "give the directory of a run"
        raise stop(Problem("E-CFG-15", (), "there is no such file", fix, str(path)))
    problems = read(path, "", places)
    tree = saved_settings(path)
    fill(root, tree, places, (config_dir(),))
    return load(Assembled(root, tree, {}, places, problems), launch=False)


def saved_settings(path: Path) -> dict[str, Any]:
    """Read a run's config.yaml as plain values. Raises ConfigError for no such file, CheckpointError E-CKP-31."""
    tree = plain(path)
    if not isinstance(tree, dict):
        raise stop(Problem("E-CFG-15", (), "this is not the configuration of a run", "restore the file", str(path)))
    check_format(path, tree)
    return {key: value for key, value in tree.items() if key != "format"}


def check_format(path: Path, record: Mapping[str, Any]) -> None:
    """Refuse a run's record of another format. Raises CheckpointError E-CKP-31."""
    if (found := record.get("format", 1)) != FORMAT:
        raise CheckpointError(
            f"E-CKP-31 {path}: another version of coca_train made this run (format {found}; this version reads "
            f"{FORMAT}). Fix: use that version, or begin another run: run.name=<another>"
        )
