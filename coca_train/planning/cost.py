"""A stage's whole cost: FLOPs, hours, memory, and what to change where it does not fit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Any

from coca_train.config.check import RULES, World
from coca_train.config.messages import ConfigError, Problem, show
from coca_train.config.schema import Config
from coca_train.planning.fit import Change, smallest_change
from coca_train.planning.gpus import Gpu, peak_of
from coca_train.planning.memory import Memory, memory
from coca_train.planning.outline import Outline
from coca_train.planning.schedule import n_tokens
from coca_train.planning.step import Activations, Flops, activations, flops
from coca_train.schedule import Stage
from coca_train.tracking.throughput import Peak

OF_THIS_MACHINE = ("E-RUN-04", "E-CFG-27")  # a plan is for another one: what GPUs are here does not matter


@dataclass(frozen=True)
class Cluster:
    """Where a run would be. mfu: model FLOPs utilisation it is taken to reach (throughput.py says what that is)."""

    n_gpus: int
    gpu: Gpu
    mfu: float


@dataclass(frozen=True)
class Cost:
    """Of one stage. per_token: FLOPs. change: the smallest that fits; None: it fits, or nothing does (see `fits`)."""

    stage: Stage
    outline: Outline
    per_token: Flops
    n_tokens: int
    peak: Peak
    hours: float
    memory: dict[bool, Memory]  # activation checkpointing -> memory
    fits: bool
    change: Change | None


def cost(stage: Stage, outline: Outline, cluster: Cluster, stages: Sequence[Stage] = ()) -> Cost:
    """Plan one stage, which `check_launch` has let through. stages: of the whole run, which has as many GPUs."""
    config = stage.config
    others = [other.config.train for other in stages if other.name != stage.name]
    remembered = cache(partial(activations, outline))  # what is changed below leaves the model as it is

    def watch(_: Outline, *what: object, **how: object) -> Activations:
        return remembered(*what, **how)

    def fits(changed: Config, n_gpus: int) -> bool:
        if any(train.global_batch_size % (train.micro_batch_size * n_gpus) for train in others):
            return False
        return memory(replace(outline, config=changed), n_gpus, cluster.gpu.kind, watch).total <= cluster.gpu.usable

    by_checkpointing = {}
    for checkpointing in (False, True):
        engine = replace(config.engine, activation_checkpointing=checkpointing)
        other = replace(outline, config=replace(config, engine=engine))
        by_checkpointing[checkpointing] = memory(other, cluster.n_gpus, cluster.gpu.kind, watch)
    as_set = by_checkpointing[config.engine.activation_checkpointing].total <= cluster.gpu.usable
    per_token, tokens = flops(outline), n_tokens(stage)
    peak = peak_of(cluster.gpu, config.engine.dtype)
    seconds = tokens * per_token.total / (cluster.n_gpus * peak.flops * cluster.mfu)
    change = None if as_set else smallest_change(config, cluster.n_gpus, fits)
    return Cost(stage, outline, per_token, tokens, peak, seconds / 3600, by_checkpointing, as_set, change)


def check_launch(config: Config, cluster: Cluster) -> None:
    """The rules that a launch with this many processes is held to, in their own words.

    Raises ConfigError with all of them, UserError for a GPU that has not got the dtype.
    """
    known: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(config)} | {
        "world": World(0, cluster.n_gpus, 0)
    }
    problems: list[Problem] = []
    for rule in RULES:
        wanted = rule.__code__.co_varnames[: rule.__code__.co_argcount]
        if "world" in wanted:
            problems += rule(**{name: known[name] for name in wanted})
    problems = [problem for problem in problems if problem.id not in OF_THIS_MACHINE]
    if problems:
        raise ConfigError(problems, [_line(problem, config) for problem in problems])
    peak_of(cluster.gpu, config.engine.dtype)


def _line(problem: Problem, config: Config) -> str:
    """A problem as its line, with the values of the keys it is about."""
    shown = []
    for key in problem.keys:
        value = asdict(config)
        for part in key.split("."):
            value = value[part]
        shown.append(f"{key}={show(value)}")
    return f"{problem.id} {', '.join(shown)}: {problem.message}. Fix: {problem.fix}"
