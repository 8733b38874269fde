"""The strict step: a plain tree becomes frozen dataclasses, or a list of problems in words."""

import json
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coca_train.config.errors import UserError
from coca_train.config.fields import TYPED_BY_MODULE, fields_of, modules_with, needs, options
from coca_train.config.interpolate import leaves
from coca_train.config.messages import Problem, mistyped, unknown
from coca_train.config.schema import Config

_UNKNOWN = "unexpected_keyword_argument"


def type_sections(
    tree: dict[str, Any], examples: dict[str, Any], told: set[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Type every section of a resolved tree.

    examples: dotted key -> a value that was right before overrides. told: keys already reported.
    Returns the sections that are right, and what is wrong with the others.
    """
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    known = list(dict.fromkeys([*examples, *(option.key for option in options())]))
    for name in [name for name in tree if name not in fields_of(Config)]:
        problems += [unknown(key, known) for key, _ in leaves(tree[name], name) if key not in told]
    for name in fields_of(Config):
        if name not in tree:
            problems.append(
                Problem("E-CFG-11", (name,), "the section is missing", f"restore {name} in the defaults list")
            )
            continue
        value = json.loads(json.dumps(tree[name], default=str))  # plain JSON types, keys as text
        missing = [key for key, leaf in leaves(value, name) if leaf == "???" and key not in told]
        problems += [Problem("E-CFG-11", (key,), "it has no value yet", f"pass {key}=…") for key in missing]
        errors = _errors(name, value)
        for error in errors:
            problems += _told(name, error, examples, known, told | set(missing))
        if errors and all(error["type"] == _UNKNOWN for error in errors):
            for error in errors:
                _remove(value, error["loc"])
            errors = _errors(name, value)
        if not errors:
            typed[name] = _convert(name, value)
            problems += _loose_choices(name, value, known)
    return typed, problems


def _convert(name: str, value: Any) -> Any:
    if name in TYPED_BY_MODULE:
        return import_module(TYPED_BY_MODULE[name][1]).settings(value)
    annotation: Any = fields_of(Config)[name].annotation
    return TypeAdapter(annotation).validate_json(json.dumps(value))


def _errors(name: str, value: Any) -> list[Any]:
    """pydantic's errors of a section; none when it is right."""
    try:
        _convert(name, value)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    except UserError as error:
        return [{"type": "module", "loc": (TYPED_BY_MODULE[name][0],), "input": value, "msg": str(error)}]
    return []


def _told(name: str, error: Any, examples: dict[str, Any], known: list[str], told: set[str]) -> list[Problem]:
    """One pydantic error as problems."""
    parts = [name, *(str(part) for part in error["loc"])]
    key, kind, value = ".".join(parts), error["type"], error["input"]
    if key in told:
        return []
    if kind == _UNKNOWN:
        return [_unknown(leaf, known) for leaf, _ in list(leaves(value, key))[:5] if leaf not in told]
    if kind == "module":
        return [Problem("E-CFG-31", (key,), error["msg"], f"choose it with {name}=<name>")]
    while parts[-1].isdigit():
        parts.pop()
    option = ".".join(parts)
    expected = _needs(option)
    if kind == "missing" and key == option:
        return [Problem("E-CFG-11", (key,), f"it has no value; it needs {expected}", f"pass {key}=…")]
    if kind == "missing" or (key != option and kind in ("too_long", "too_short")):
        kind = "too_short"
    example = examples.get(option, _list(examples, option))
    if example is None or example == value:
        example = _example(expected)
    return [mistyped(option, value, expected, example, kind, str(error.get("ctx", {}).get("error", "")))]


def _unknown(key: str, known: list[str]) -> Problem:
    """A key that nobody has, or that belongs to another scheme, scaling or visibility than the chosen one."""
    if owners := modules_with(key):
        return Problem("E-CFG-01", (key,), "the chosen one has no such option", f"choose {owners}, or leave it away")
    return unknown(key, known)


def _list(examples: dict[str, Any], key: str) -> list[Any] | None:
    found = [value for name, value in examples.items() if name.startswith(f"{key}.") and name[len(key) + 1 :].isdigit()]
    return found or None


def _needs(key: str) -> str:
    """What the option at `key` must be, in words."""
    parts = key.split(".")
    for option in options():
        pattern = option.key.split(".")
        if len(parts) == len(pattern) and all(p in ("<name>", part) for p, part in zip(pattern, parts, strict=True)):
            return option.needs
    if parts[0] in TYPED_BY_MODULE and len(parts) > 1:
        return _module_needs(parts)
    return "a section"


def _module_needs(parts: list[str]) -> str:
    """The same for an option of any scheme, scaling or visibility."""
    if parts[0] == "visibility":
        package = import_module("coca_train.positions.visibilities")
        modules = [package.visibility_module(name) for name in package.visibility_names()]
    elif parts[1] == "frequencies" and len(parts) == 3:
        package = import_module("coca_train.positions.frequencies")
        modules = [package.frequency_module(name) for name in package.frequency_names()]
    else:
        package = import_module("coca_train.positions")
        modules = [package.scheme_module(name) for name in package.scheme_names()]
    for module in modules:
        field = fields_of(module.Settings).get(parts[-1])
        if field is not None and field.annotation is not Any:
            return needs(field.annotation, list(field.metadata))
    return "a section"


def _example(expected: str) -> Any:
    words = {
        "a whole number": 2,
        "a number": 0.1,
        "true": True,
        "one of ": expected[7:].split(", ")[0],
        "letters": "my_run",
    }
    return next((example for start, example in words.items() if expected.startswith(start)), None)


def _loose_choices(name: str, value: Any, known: list[str]) -> list[Problem]:
    """pydantic takes 1.0 and true where 1 is one of the choices; we do not."""
    problems = []
    for key, leaf in leaves(value, name):
        expected = _needs(key) if name not in TYPED_BY_MODULE else ""
        if expected.startswith("one of ") and str(leaf) not in expected.removeprefix("one of ").split(", "):
            problems.append(mistyped(key, leaf, expected, None, "literal_error"))
    return problems


def _remove(value: Any, loc: tuple[Any, ...]) -> None:
    *parents, last = loc
    for name in parents:
        value = value[name]
    del value[last]
