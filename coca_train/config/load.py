"""From YAML files and overrides to one frozen, checked `Config`. Hydra is used in this package only."""

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from coca_train.config import check
from coca_train.config.compose import compose
from coca_train.config.fields import fields_of, options
from coca_train.config.files import choices, config_dir
from coca_train.config.interpolate import leaves, resolve
from coca_train.config.messages import ConfigError, Problem, is_secret, show
from coca_train.config.overrides import apply, parse
from coca_train.config.provenance import Sources, read, stop
from coca_train.config.schema import Config
from coca_train.config.strict import type_sections


@dataclass(frozen=True)
class Loaded:
    """A run's configuration, and how it came about."""

    config: Config
    yaml: str  # resolved, what a run directory keeps as config.yaml
    overrides: list[str]
    choices: dict[str, str]  # config group -> option


@dataclass
class Assembled:
    """The merged tree with overrides applied, untyped yet."""

    tree: dict[str, Any]
    choices: dict[str, str]
    sources: Sources
    problems: list[Problem]
    examples: dict[str, Any]  # the values before overrides

    def lines(self) -> list[str]:
        """The problems as text."""
        return [_line(problem, self.sources, self.tree) for problem in dict.fromkeys(self.problems)]


def assemble(overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Assembled:
    """Files, choices and overrides as one plain tree. Raises ConfigError for files that cannot be read."""
    dirs = (config_dir(), *config_dirs)
    parsed = parse(overrides, dirs, [option.key for option in options()])
    composed = compose(parsed.groups, dirs)
    problems = [*parsed.problems, *composed.problems]
    examples = dict(leaves(composed.tree))
    for override in parsed.values:
        problem = apply(composed.tree, override, list(examples))
        if problem:
            problems.append(problem)
        else:
            composed.sources.command_line[override.key_or_group] = (override.input_line or "").partition("=")[2]
    return Assembled(composed.tree, composed.choices, composed.sources, problems, examples)


def load(overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> Loaded:
    """Compose, check and freeze. config_dirs: further folders with experiments and group choices.

    Raises ConfigError, which names every problem and who set the value.
    """
    assembled = assemble(overrides, config_dirs)
    config, text = _finish(assembled, launch=True)
    return Loaded(config, text, list(overrides), assembled.choices)


def load_saved(run_dir: str | Path) -> Loaded:
    """The configuration a run directory keeps, through the same checks as a new one."""
    path, sources = Path(run_dir) / "config.yaml", Sources()
    if not path.is_file():
        raise stop(Problem("E-CFG-15", (), "there is no such file", "give the directory of a run", str(path)))
    problems = read(path, "", sources)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict):
        raise stop(Problem("E-CFG-15", (), "this is not the configuration of a run", "restore the file", str(path)))
    config, text = _finish(Assembled(tree, {}, sources, problems, dict(leaves(tree))), launch=False)
    return Loaded(config, text, [], {})


def frequency_variants(config: Config) -> dict[str, Any]:
    """Position settings for each name in `eval.extrapolation.frequencies`, for the same weights.

    The ones the weights were trained with are always among them, and their base theta stays. A scheme
    without frequencies has one variant, itself, under the name `plain`.
    """
    own = getattr(config.position, "frequencies", None)
    if own is None:
        return {"plain": config.position}
    found, offered = {}, choices("position/frequencies", (config_dir(),))
    settings = import_module("coca_train.positions").settings
    for name in dict.fromkeys([own.name, *config.eval.extrapolation.frequencies]):
        tree = asdict(config)
        tree["position"]["frequencies"] = yaml.safe_load(offered[name].read_text(encoding="utf-8")) | {
            "theta": own.theta
        }
        resolved, problems = resolve(tree)
        assert not problems, problems
        found[name] = config.position if name == own.name else settings(resolved["position"])
    return found


def _finish(a: Assembled, launch: bool) -> tuple[Config, str]:
    """Resolve, type and cross-check. Raises ConfigError with everything found, before or here."""
    secret = [key for key, value in leaves(a.tree) if is_secret(key, value)]
    a.problems += [
        Problem("E-SEC-02", (key,), "this is a secret; a configuration is saved and logged", check.secret_fix(key))
        for key in secret
    ]
    links = {key: value[2:-1] for key, value in leaves(a.tree) if str(value).startswith("${")}
    a.tree, wrong = resolve(a.tree)
    typed, mistakes = type_sections(a.tree, a.examples, {p.keys[0] for p in wrong} | set(secret))
    blamed = {key for mistake in mistakes for key in mistake.keys}
    mistakes = [mistake for mistake in mistakes if links.get(mistake.keys[0]) not in blamed]  # a copy of a wrong value
    a.problems += [*wrong, *mistakes, *check.problems(typed, launch)]
    if a.problems:
        raise ConfigError(a.problems, a.lines())
    ordered = {name: a.tree[name] for name in fields_of(Config)}
    return Config(**typed), yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)


def _line(problem: Problem, sources: Sources, tree: dict[str, Any]) -> str:
    """A problem as its line, with the value and the place of every key it is about."""
    values = {**dict(leaves(tree)), **sources.command_line}
    parts = []
    for key in problem.keys:
        value = f"={'***' if is_secret(key, values[key]) else show(values[key])}" if key in values else ""
        where = problem.place or sources.where(key)
        parts.append(f"{where} {key}{value}".lstrip())
    return f"{problem.id} {', '.join(parts) or problem.place}: {problem.message}. Fix: {problem.fix}"
