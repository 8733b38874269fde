"""`${section.option}` and `${oc.env:COCA_TRAIN_…,default}`: the only two interpolations a config may use.

Resolved here and not by OmegaConf, so that no other resolver can be reached from a config and
every wrong one is reported, not the first.
"""

import os
import re
from typing import Any

from coca_train.config.messages import Problem
from coca_train.runtime.trees import lookup

_ALLOWED = re.compile(
    r"\$\{(?:oc\.env:(?P<env>COCA_TRAIN_[A-Z0-9_]+)(?:,(?P<default>[^${},]*))?|(?P<key>[A-Za-z_][\w.]*))\}"
)
_DEEPEST = 20


class Verbatim(str):
    """Text that means itself: nothing in it is an interpolation."""

    __slots__ = ()


class _WrongError(Exception):
    """Carries a Problem out of the recursion."""


def resolve(tree: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `tree` without interpolations, and what was wrong with them."""
    problems: list[Problem] = []

    def copy(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {k: copy(v, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [copy(v, f"{key}.{i}") for i, v in enumerate(value)]
        try:
            return _value(tree, value, (key,))
        except _WrongError as wrong:
            problems.append(wrong.args[0])
            return value

    return copy(tree, ""), problems


def _value(tree: dict[str, Any], value: Any, chain: tuple[str, ...]) -> Any:
    if isinstance(value, Verbatim):
        return str(value)
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _ALLOWED.fullmatch(value)
    if whole:
        return _one(tree, whole, chain)
    text = _ALLOWED.sub(lambda match: str(_one(tree, match, chain)), value)
    if "${" in _ALLOWED.sub("", value):
        raise _WrongError(
            Problem(
                "E-SEC-03",
                (chain[0],),
                "this interpolation is not allowed; ${section.option} and ${oc.env:COCA_TRAIN_NAME,default} are",
                "write the value itself",
            )
        )
    return text


def _one(tree: dict[str, Any], match: re.Match[str], chain: tuple[str, ...]) -> Any:
    if match["env"]:
        found = os.environ.get(match["env"], match["default"])
        if found is None:
            problem = f"the environment variable {match['env']} is not set"
            raise _WrongError(Problem("E-CFG-12", (chain[0],), problem, f"export {match['env']}=…, or write the value"))
        return found
    key = match["key"]
    if key in chain or len(chain) > _DEEPEST:
        circle = " -> ".join([*chain, key])
        raise _WrongError(
            Problem("E-CFG-12", (chain[0],), f"interpolation in a circle: {circle}", "write one value out")
        )
    try:
        target = lookup(tree, key)
    except KeyError:
        raise _WrongError(
            Problem("E-CFG-12", (chain[0],), f"${{{key}}} does not exist", f"set {key}, or write the value itself")
        ) from None
    if isinstance(target, (dict, list)):
        raise _WrongError(
            Problem(
                "E-CFG-12",
                (chain[0],),
                f"${{{key}}} is a {'section' if isinstance(target, dict) else 'list'}, not a value",
                "name one option",
            )
        )
    return _value(tree, target, (*chain, key))
