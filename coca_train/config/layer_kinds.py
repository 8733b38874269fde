"""Kinds of layers: the run's own position, visibility and logit scale, with what a kind says differently over them."""

from typing import Any

from coca_train.config.exchange import over
from coca_train.config.messages import Problem
from coca_train.config.root import Root
from coca_train.config.strict import type_sections
from coca_train.runtime.trees import leaves


def of_kind(tree: dict[str, Any], kind: dict[str, Any]) -> dict[str, Any]:
    """The sections that a kind of layer may change, as they hold in its layers. Plain values, in and out."""
    merged = {key: over(tree[key], kind.get(key, {}), key) for key in ("position", "visibility")}
    scale = over(tree["model"]["logit_scale"], kind.get("logit_scale", {}))
    return merged | {"model": tree["model"] | {"logit_scale": scale}}


def kind_problems(root: Root, tree: dict[str, Any]) -> list[Problem]:
    """What is wrong in the kinds of a resolved tree whose sections are right by themselves."""
    found: list[Problem] = []
    examples = {key: value for key, value in leaves(tree) if not key.startswith(("stages.", "layers."))}
    for name, kind in tree["layers"].get("kinds", {}).items():
        typed, problems = type_sections(root, tree | of_kind(tree, kind), examples, set())
        if not problems:
            problems = root.check({key: typed[key] for key in ("model", "position", "visibility")}, False)
        said = {
            key: f"layers.kinds.{name}.{key}" for key, _ in leaves({key: part for key, part in kind.items() if part})
        }
        found += [_of_kind(problem, name, said) for problem in problems]
    return found


def _of_kind(problem: Problem, name: str, said: dict[str, str]) -> Problem:
    """A problem of a kind's sections, told of the keys that the kind itself sets."""
    keys, fix = [], problem.fix
    for key in problem.keys:
        key_of_kind = key.removeprefix("model.") if key.startswith("model.logit_scale") else key
        keys.append(said.get(key_of_kind, f"layers.kinds.{name}.{key_of_kind}" if _new(key_of_kind, said) else key))
        fix = fix.replace(f"{key}=", f"{keys[-1]}=")
    return Problem(problem.id, tuple(keys), f"in layers of the kind {name}: {problem.message}", fix, problem.place)


def _new(key: str, said: dict[str, str]) -> bool:
    """Whether a key that has no value lies in a part that the kind names a choice for."""
    parent = key.rpartition(".")[0]
    return any(said_key.startswith(f"{parent}.") for said_key in said) and parent != ""
