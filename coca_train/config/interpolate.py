"""`${section.option}` and `${oc.env:COCA_TRAIN_…,default}`: the only two interpolations a config may use.

Resolved here and not by OmegaConf, so that no other resolver can be reached from a config and every wrong one is
reported, not the first. Before typing, because a text `${train.seq_len}` stands where a number is needed. What has no
value yet and what must not be written down is seen on the same way: the tree is walked once.
"""

import json
import os
import re
from typing import Any

from coca_train.config.messages import Problem, is_secret, secret_fix
from coca_train.runtime.trees import lookup

_ALLOWED = re.compile(
    r"\$\{(?:oc\.env:(?P<env>COCA_TRAIN_[A-Z0-9_]+)(?:,(?P<default>[^${},]*))?|(?P<key>[A-Za-z_][\w.]*))\}"
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DEEPEST = 20


class Verbatim(str):
    """Text that means itself: nothing in it is an interpolation."""

    __slots__ = ()


class _WrongError(Exception):
    """Carries a Problem out of the recursion."""


def resolve(tree: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `tree` without interpolations, and what is wrong with them; secrets, and values that are missing."""
    problems: list[Problem] = []

    def copy(value: Any, key: str) -> Any:
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

    def text(value: str, chain: tuple[str, ...]) -> Any:
        if isinstance(value, Verbatim) or "${" not in value:
            return str(value)
        if whole := _ALLOWED.fullmatch(value):  # what stands there keeps its type, and a number in a variable is one
            found = target(whole, chain)
            return json.loads(found) if whole["env"] and _NUMBER.fullmatch(found) else found
        if "${" in _ALLOWED.sub("", value):
            message = "this interpolation is not allowed; ${section.option} and ${oc.env:COCA_TRAIN_NAME,default} are"
            raise _WrongError(Problem("E-SEC-03", chain[:1], message, "write the value itself"))
        return _ALLOWED.sub(lambda match: str(target(match, chain)), value)

    def target(match: re.Match[str], chain: tuple[str, ...]) -> Any:
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

    return copy(tree, ""), problems
