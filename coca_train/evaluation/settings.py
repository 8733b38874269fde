"""The configuration of `python -m coca_train evaluate`: configs/evaluation/evaluate.yaml and the choices of `eval`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coca_train.config.load import load as load_root
from coca_train.config.messages import Problem
from coca_train.config.root import Root
from coca_train.evaluation.schema import EvaluateConfig
from coca_train.evaluation.suites import SUITES


def problems(sections: dict[str, Any], launch: bool) -> list[Problem]:
    """Rules over sections that are right by themselves."""
    found, grid, work = [], sections.get("grid"), sections.get("work")
    if grid is not None and not grid.checkpoints:
        text = "there is no model to measure"
        found.append(Problem("E-EVAL-01", ("grid.checkpoints",), text, "give one or more: checkpoint=runs/quickstart"))
    elif grid is not None and grid.names and len(grid.names) != len(grid.checkpoints):
        text = f"{len(grid.names)} names for {len(grid.checkpoints)} checkpoints"
        found.append(Problem("E-EVAL-01", ("grid.names",), text, "name each checkpoint once, or none: grid.names=[]"))
    for key in ("checkpoints", "names", "frequencies", "visibilities", "lengths"):
        values = getattr(grid, key, [])
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            text = f"{', '.join(twice)} is there twice"
            found.append(Problem("E-EVAL-01", (f"grid.{key}",), text, "name each once"))
    if work is not None and work.name == CELLS:
        text = "this folder keeps the measured cells of all evaluations"
        found.append(Problem("E-EVAL-01", ("work.name",), text, "choose another name"))
    return found


CELLS = "cells"

EVALUATE = Root(
    name="evaluate",
    folder="evaluation",
    schema=EvaluateConfig,
    groups=("eval",),
    check=problems,
    command="coca_train evaluate",
    examples="work.device=cpu, or group=choice, e.g. +eval=passkey",
    place="work.root and work.name",
    registries={"eval": SUITES},
    from_top=("eval",),
)


def load(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> tuple[EvaluateConfig, str]:
    """Compose, check and freeze; the configuration and its text. Raises ConfigError, which names every problem."""
    loaded = load_root(EVALUATE, overrides(words), dirs)
    return loaded.config, loaded.yaml


def overrides(words: Sequence[str]) -> list[str]:
    """The words as Hydra overrides: `checkpoint=a,b` is short for grid.checkpoints=[a,b]."""
    return [_long(word) for word in words]


def _long(word: str) -> str:
    key, equals, value = word.partition("=")
    if key != "checkpoint" or not equals:
        return word
    paths = [part.strip() for part in value.strip("[]").split(",") if part.strip()]
    return f"grid.checkpoints=[{','.join(map(_quoted, paths))}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
