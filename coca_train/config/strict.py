"""The strict step: a plain tree becomes frozen dataclasses, or a list of problems in words."""

import json
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from coca_train.config.fields import fields_of, modules_with, needs, options
from coca_train.config.messages import Problem, mistyped, nearest
from coca_train.config.registry import Registry
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import leaves

_UNKNOWN = "unexpected_keyword_argument"


def type_sections(
    root: Root, tree: dict[str, Any], examples: dict[str, Any], told: set[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Type every section of a resolved tree.

    examples: dotted key -> a value that was right before overrides. told: keys already reported.
    Returns the sections that are right, and what is wrong with the others.
    """
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    known = list(dict.fromkeys([*examples, *(option.key for option in options(root))]))
    for name in [name for name in tree if name not in fields_of(root.schema)]:
        problems += [_no_such_key(root, key, known) for key, _ in leaves(tree[name], name) if key not in told]
    for name in fields_of(root.schema):
        if name not in tree:
            problems.append(
                Problem("E-CFG-11", (name,), "the section is missing", f"restore {name} in the defaults list")
            )
            continue
        value = json.loads(json.dumps(tree[name], default=str))  # plain JSON types, keys as text
        missing = [key for key, leaf in leaves(value, name) if leaf == "???" and key not in told]
        problems += [Problem("E-CFG-11", (key,), "it has no value yet", f"pass {key}=…") for key in missing]
        errors = _errors(root, name, value)
        for error in errors:
            problems += _told(root, name, error, examples, known, told | set(missing))
        if errors and all(error["type"] == _UNKNOWN for error in errors):
            for error in errors:
                _remove(value, error["loc"])
            errors = _errors(root, name, value)
        if not errors:
            typed[name] = _convert(root, name, value)
            problems += _loose_choices(root, name, value)
    return typed, problems


def _convert(root: Root, name: str, value: Any) -> Any:
    if name in root.registries:
        return root.registries[name].settings(value)
    field: Any = fields_of(root.schema)[name]
    kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    strict = None if is_dataclass(field.annotation) else STRICT  # a section says so itself
    return TypeAdapter(kind, config=strict).validate_json(json.dumps(value))


def _errors(root: Root, name: str, value: Any) -> list[Any]:
    """pydantic's errors of a section; none when it is right."""
    try:
        _convert(root, name, value)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    except UserError as error:
        return [{"type": "module", "loc": (root.registries[name].tag,), "input": value, "msg": str(error)}]
    return []


def _told(
    root: Root, name: str, error: Any, examples: dict[str, Any], known: list[str], told: set[str]
) -> list[Problem]:
    """One pydantic error as problems."""
    parts = [name, *(str(part) for part in error["loc"])]
    key, kind, value = ".".join(parts), error["type"], error["input"]
    if key in told:
        return []
    if kind == _UNKNOWN:
        return [_unknown(root, leaf, known) for leaf, _ in list(leaves(value, key))[:5] if leaf not in told]
    if kind == "module":
        return [Problem("E-CFG-31", (key,), error["msg"], f"choose it with {name}=<name>")]
    while parts[-1].isdigit():
        parts.pop()
    option = ".".join(parts)
    expected = _needs(root, option)
    if kind == "missing" and key == option:
        return [Problem("E-CFG-11", (key,), f"it has no value; it needs {expected}", f"pass {key}=…")]
    if kind == "missing" or (key != option and kind in ("too_long", "too_short")):
        kind = "too_short"
    example = examples.get(option, _list(examples, option))
    if example in (None, value, "???", []):
        example = [value] if expected.startswith("a list") and kind == "list_type" else _example(expected)
    return [mistyped(option, value, expected, example, kind, str(error.get("ctx", {}).get("error", "")))]


def _unknown(root: Root, key: str, known: list[str]) -> Problem:
    """A key that nobody has, or that belongs to another scheme, scaling or visibility than the chosen one."""
    if owners := modules_with(root, key):
        return Problem("E-CFG-01", (key,), "the chosen one has no such option", f"choose {owners}, or leave it away")
    return _no_such_key(root, key, known)


def _no_such_key(root: Root, key: str, known: list[str]) -> Problem:
    """A key the schema does not have."""
    first, *inner = key.split(".")
    if any(part.startswith("_") and part.endswith("_") for part in (first, *inner)):
        return Problem(
            "E-SEC-01", (key,), "keys like _target_ are not used here: a config cannot name code to run", "remove it"
        )
    if first in root.from_top and (first not in fields_of(root.schema) or inner[0] in fields_of(root.schema)):
        return Problem(
            "E-CFG-01",
            (key,),
            f"unknown key: {'an' if first[0] in 'aeiou' else 'a'} {first} file sets options from the top",
            "make '# @package _global_' the first line of the file",
        )
    close, section = nearest(key, known), key.rpartition(".")[0]
    inside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    fix = f"see `python -m {root.command} --help` for all options"
    if close:
        fix = f"did you mean {' or '.join(close)}?"
    elif inside:
        fix = f"{section} has {', '.join(inside)}"
    return Problem("E-CFG-01", (key,), "unknown key", fix)


def _list(examples: dict[str, Any], key: str) -> list[Any] | None:
    found = [value for name, value in examples.items() if name.startswith(f"{key}.") and name[len(key) + 1 :].isdigit()]
    return found or None


@cache  # asked for every value of every load
def _needs(root: Root, key: str) -> str:
    """What the option at `key` must be, in words."""
    parts = key.split(".")
    for option in options(root):
        pattern = option.key.split(".")
        if len(parts) == len(pattern) and all(p in ("<name>", part) for p, part in zip(pattern, parts, strict=True)):
            return option.needs
    if (registry := root.registry(key)) is not None:
        return _module_needs(registry, parts[-1])
    return "a section"


def _module_needs(registry: Registry, name: str) -> str:
    """The same for an option of any module of a registry."""
    for module in map(registry.module, registry.names()):
        field = fields_of(module.Settings).get(name)
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


def _loose_choices(root: Root, name: str, value: Any) -> list[Problem]:
    """pydantic takes 1.0 and true where 1 is one of the choices; we do not."""
    problems = []
    for key, leaf in leaves(value, name):
        expected = _needs(root, key) if name not in root.registries else ""
        if expected.startswith("one of ") and str(leaf) not in expected.removeprefix("one of ").split(", "):
            problems.append(mistyped(key, leaf, expected, None, "literal_error"))
    return problems


def _remove(value: Any, loc: tuple[Any, ...]) -> None:
    *parents, last = loc
    for name in parents:
        value = value[name]
    del value[last]
