"""From YAML files and overrides to one frozen, checked configuration. Hydra is used in this package only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coca_train.config.compose import compose
from coca_train.config.exchange import fill_choices
from coca_train.config.fields import fields_of, options
from coca_train.config.files import config_dir
from coca_train.config.interpolate import Verbatim, resolve
from coca_train.config.layer_kinds import kind_problems
from coca_train.config.messages import ConfigError, Problem, is_secret, secret_fix, show
from coca_train.config.older import complete
from coca_train.config.overrides import apply, parse
from coca_train.config.provenance import Sources, read, stop
from coca_train.config.root import Root
from coca_train.config.stage_configs import stage_problems
from coca_train.config.strict import type_sections
from coca_train.config.templates import fill
from coca_train.runtime.trees import leaves


@dataclass(frozen=True)
class Loaded:
    """A run's configuration, and how it came about."""

    config: Any  # of the root's schema
    yaml: str  # resolved, what a run directory keeps as config.yaml
    overrides: list[str]
    choices: dict[str, str]  # config group -> option


@dataclass
class Assembled:
    """The merged tree with overrides applied, untyped yet."""

    root: Root
    tree: dict[str, Any]
    choices: dict[str, str]
    sources: Sources
    problems: list[Problem]
    examples: dict[str, Any]  # the values before overrides

    def lines(self) -> list[str]:
        """The problems as text."""
        return [_line(problem, self.sources, self.tree) for problem in dict.fromkeys(self.problems)]


def assemble(root: Root, overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Assembled:
    """Files, choices and overrides as one plain tree. Raises ConfigError for files that cannot be read."""
    dirs = root.dirs(config_dirs)
    parsed = parse(root, overrides, dirs, [option.key for option in options(root)])
    composed = compose(root, parsed.groups, dirs)
    problems = [*parsed.problems, *composed.problems]
    fill(root, composed.tree, composed.sources, dirs)
    examples = dict(leaves(composed.tree))
    for override in parsed.values:
        problem = apply(composed.tree, override, list(examples))
        if problem:
            problems.append(problem)
        else:
            composed.sources.command_line[override.key_or_group] = (override.input_line or "").partition("=")[2]
    fill(root, composed.tree, composed.sources, dirs)  # what the command line added
    if root.staged:
        fill_choices(composed.tree, composed.sources)
    return Assembled(root, composed.tree, composed.choices, composed.sources, problems, examples)


def load(root: Root, overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Loaded:
    """Compose, check and freeze. config_dirs: further folders with experiments and group choices.

    Raises ConfigError, which names every problem and who set the value.
    """
    assembled = assemble(root, overrides, config_dirs)
    config, text = finish(assembled, launch=True)
    return Loaded(config, text, list(overrides), assembled.choices)


def load_saved(root: Root, path: Path) -> Loaded:
    """A configuration that was saved as one file, through the same checks as a new one."""
    sources = Sources()
    if not path.is_file():
        raise stop(Problem("E-CFG-15", (), "there is no such file", "give the directory of a run", str(path)))
    problems = read(path, "", sources)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict):
        raise stop(Problem("E-CFG-15", (), "this is not the configuration of a run", "restore the file", str(path)))
    complete(tree)
    fill(root, tree, sources, (config_dir(),))
    config, text = finish(Assembled(root, tree, {}, sources, problems, dict(leaves(tree))), launch=False)
    return Loaded(config, text, [], {})


def finish(a: Assembled, launch: bool) -> tuple[Any, str]:
    """Resolve, type and cross-check. Raises ConfigError with everything found, before or here."""
    secret = [key for key, value in leaves(a.tree) if is_secret(key, value) and not isinstance(value, Verbatim)]
    a.problems += [
        Problem("E-SEC-02", (key,), "this is a secret; a configuration is saved and logged", secret_fix(key))
        for key in secret
    ]
    links = {key: value[2:-1] for key, value in leaves(a.tree) if str(value).startswith("${")}
    a.tree, wrong = resolve(a.tree)
    typed, mistakes = type_sections(a.root, a.tree, a.examples, {p.keys[0] for p in wrong} | set(secret))
    blamed = {key for mistake in mistakes for key in mistake.keys}
    mistakes = [mistake for mistake in mistakes if links.get(mistake.keys[0]) not in blamed]  # a copy of a wrong value
    a.problems += [*wrong, *mistakes, *a.root.check(typed, launch)]
    if a.root.staged and not a.problems:
        a.problems += kind_problems(a.root, a.tree) or stage_problems(a.root, a.tree, launch)
    if a.problems:
        raise ConfigError(a.problems, a.lines())
    ordered = {name: a.tree[name] for name in fields_of(a.root.schema)}
    return a.root.schema(**typed), yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)


def _line(problem: Problem, sources: Sources, tree: dict[str, Any]) -> str:
    """A problem as its line, with the value and the place of every key it is about."""
    values = {**dict(leaves(tree)), **sources.command_line}
    parts = []
    for key in problem.keys:
        value = f"={'***' if is_secret(key, values[key]) else show(values[key])}" if key in values else ""
        where = problem.place or sources.where(key)
        parts.append(f"{where} {key}{value}".lstrip())
    return f"{problem.id} {', '.join(parts) or problem.place}: {problem.message}. Fix: {problem.fix}"
