"""The configuration of one stage: the run's own sections, with what the stage says differently put over them."""

import json
from dataclasses import asdict
from typing import Any

from coca_train.config.check import warm_up
from coca_train.config.exchange import over
from coca_train.config.layer_kinds import kind_problems
from coca_train.config.messages import Problem
from coca_train.config.root import Root
from coca_train.config.schema import Config
from coca_train.config.strict import type_sections
from coca_train.runtime.trees import leaves, lookup

SECTIONS = ("train", "optim", "data", "position", "visibility", "layers", "engine", "eval")
# What a stage cannot say, and what to do instead. A key stands for everything below it.
_FIXED = {
    "train.max_steps": "write the length of the stage beside its name: max_steps or tokens",
    "data.tokenizer": "a model speaks one vocabulary: set data.tokenizer for the whole run",
    "position.scheme": "convert the weights first, schemes differ in parameters: python -m coca_train import",
    "engine.kind": "set it for the whole run",
    "engine.device": "set it for the whole run",
    "engine.dtype": "a run keeps its precision: set it for the whole run",
    "engine.timeout_s": "set it for the whole run",
}


def stage_config(root: Root, config: Config, name: str) -> Config:
    """A run's configuration as it holds in one of its stages; train.max_steps is the length of the stage.

    `config` was checked when it was loaded: nothing is refused here.
    """
    tree = json.loads(json.dumps(asdict(config)))
    typed, problems = _typed(root, tree, _merged(tree, name), name)
    assert not problems, problems
    return Config(**typed)


def stage_problems(root: Root, tree: dict[str, Any], launch: bool) -> list[Problem]:
    """What is wrong in the stages of a resolved tree whose sections are right by themselves."""
    found: list[Problem] = []
    for name, stage in tree["stages"].items():
        said = {key for section in SECTIONS if stage[section] for key, _ in leaves(stage[section], section)}
        fixed = [key for key in _FIXED for one in said if f"{one}.".startswith(f"{key}.")]
        found += [
            Problem("E-STG-04", (f"stages.{name}.{key}",), "a stage cannot change this", _FIXED[key]) for key in fixed
        ]
        if stage["max_steps"] is not None and stage["tokens"] is not None:
            keys = (f"stages.{name}.max_steps", f"stages.{name}.tokens")
            found.append(Problem("E-STG-03", keys, "both say how long the stage is", "leave one of them away"))
        if not fixed:
            merged = _merged(tree, name)
            typed, problems = _typed(root, tree, merged, name)
            if said:
                problems += root.check({key: part for key, part in typed.items() if key != "stages"}, launch)
                problems += [] if problems else kind_problems(root, merged)
            if {"train", "optim"} <= typed.keys():
                problems += warm_up(typed["train"], typed["optim"])
            found += [_of_stage(problem, name, tree, said) for problem in problems]
    return found


def _of_stage(problem: Problem, name: str, tree: dict[str, Any], said: set[str]) -> Problem:
    """A problem of a stage's configuration, told of the keys that the stage itself sets."""
    stage = tree["stages"][name]
    length = "tokens" if stage["tokens"] is not None else "max_steps"
    own = {key: f"stages.{name}.{key}" for key in said}
    if stage[length] is not None:
        own["train.max_steps"] = f"stages.{name}.{length}"
    keys, fix = [], problem.fix
    for key in problem.keys:
        parent = key.rpartition(".")[0]  # of a key that is missing in a part that only the stage has
        inside = _has(stage, key) or (_has(stage, parent) and not _has(tree, parent))
        keys.append(own.get(key, f"stages.{name}.{key}" if inside else key))
        fix = fix.replace(f"{key}=", f"{keys[-1]}=")
    where = f"in stage {name}: " if len(tree["stages"]) > 1 else ""
    return Problem(problem.id, tuple(keys), f"{where}{problem.message}", fix, problem.place)


def _has(tree: dict[str, Any], key: str) -> bool:
    try:
        lookup(tree, key)
    except (KeyError, TypeError):
        return False
    return True


def _merged(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """The sections of a stage, complete."""
    stage = tree["stages"][name]
    merged = {key: over(part, stage[key], key) if key in SECTIONS else part for key, part in tree.items()}
    sources = merged["data"]["sources"]
    merged["data"] = merged["data"] | {"sources": {key: part for key, part in sources.items() if part is not None}}
    return merged


def _typed(root: Root, tree: dict[str, Any], merged: dict[str, Any], name: str) -> tuple[dict[str, Any], list[Problem]]:
    """The typed sections of a stage, and what is wrong with them. merged: what `_merged` made of the tree."""
    examples = {key: value for key, value in leaves(tree) if not key.startswith(("stages.", "layers."))}
    typed, problems = type_sections(root, merged, examples, set())
    if "train" in typed:
        merged["train"] = merged["train"] | {"max_steps": _length(tree["stages"][name], merged["train"])}
        typed |= type_sections(root, {"train": merged["train"]}, {}, set())[0]
    return typed, problems


def _length(stage: dict[str, Any], train: dict[str, Any]) -> int:
    """[optimizer steps]; tokens are rounded up to whole steps."""
    if stage["tokens"] is not None:
        return -(-stage["tokens"] // (train["seq_len"] * train["global_batch_size"]))
    return stage["max_steps"] or train["max_steps"]
