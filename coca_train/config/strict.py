"""Type plain sections: frozen dataclasses, or a list of problems in words."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, reduce
from operator import getitem
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from coca_train.config.fields import fields_of, modules_with, needs_at, options
from coca_train.config.messages import Problem, explain_type_error, nearest, show
from coca_train.config.root import Root
from coca_train.config.schema import STRICT
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import leaves

_UNKNOWN = "unexpected_keyword_argument"
_MEMBER = re.compile(r"constrained-|\w+\[")  # one of the types of a union, as pydantic calls it


def type_sections(
    root: Root, sections: Mapping[str, object], examples: Mapping[str, object], reported: Collection[str] = ()
) -> tuple[dict[str, Any], list[Problem]]:
    """Type sections without interpolations: return the valid ones, and the problems of the others.

    examples: dotted key -> its value before overrides, which is valid. reported: keys whose problems are known already.
    """
    typed: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, section in sections.items():
        value = json.loads(json.dumps(section, default=str))  # plain JSON types, keys as text
        # Again without unknown keys; any other problem ends the loop.
        while name not in typed:
            try:
                typed[name] = _reader(root, name)(value)
            except UserError as error:
                key = f"{name}.{root.registries[name].tag}"
                problems.append(Problem("E-CFG-31", (key,), str(error), f"choose it with {name}=<name>"))
                break
            except ValidationError as error:
                errors = error.errors(include_url=False)
                for each in _nearest_of_unions(errors):
                    problems += _problems(root, name, each, examples, reported)
                if any(each["type"] != _UNKNOWN for each in errors):
                    break
                # Without the unknown keys, so that rules check the rest of the section too.
                for each in errors:
                    del reduce(getitem, each["loc"][:-1], value)[each["loc"][-1]]
    return typed, problems


@cache
def _reader(root: Root, name: str) -> Callable[[object], object]:
    """Return what types a section: it raises pydantic's ValidationError, or UserError for an unknown module."""
    if name in root.registries:
        return root.registries[name].settings
    field = fields_of(root.schema)[name]
    kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    adapter = TypeAdapter(kind, config=None if is_dataclass(field.annotation) else STRICT)  # a section says so itself
    # As JSON: only there pydantic's strict mode takes a list for a tuple, and 1 for 1.0, as YAML has them.
    return lambda value: adapter.validate_json(json.dumps(value))


def _nearest_of_unions(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Keep one error a value where pydantic has one for each type of a union, with the type among the keys: what is
    wrong inside the value, else a bound, else its type."""
    kept: dict[object, ErrorDetails] = {}
    for number, error in enumerate(errors):
        place = error["loc"]
        member = next((n for n, part in enumerate(place) if _MEMBER.match(str(part))), None)
        if member is None:
            kept[number] = error
            continue
        inside = ".".join(map(str, place[member + 1 :]))
        one: ErrorDetails = {**error, "loc": place[:member]}
        if inside:
            text = f"{inside} is {json.dumps(error['input'])}: {error['msg'][:1].lower()}{error['msg'][1:]}"
            one = {**one, "type": "value_error", "ctx": {"error": text}}
        if place[:member] not in kept or _nearness(one) > _nearness(kept[place[:member]]):
            kept[place[:member]] = one
    return list(kept.values())


def _nearness(error: ErrorDetails) -> int:
    return 2 if error["type"] == "value_error" else int(not error["type"].endswith("_type"))


def _problems(
    root: Root, name: str, error: ErrorDetails, examples: Mapping[str, object], reported: Collection[str]
) -> list[Problem]:
    """Return one pydantic error in words."""
    parts = [name, *(str(part) for part in error["loc"])]
    key, kind, value = ".".join(parts), error["type"], error["input"]
    if key in reported:
        return []
    if kind == _UNKNOWN:
        return [
            explain_unknown_key(root, leaf, examples)
            for leaf, _ in list(leaves(value, key))[:5]
            if leaf not in reported
        ]
    while parts[-1].isdigit():  # an element of a list; messages are about the list
        parts.pop()
    option = ".".join(parts)
    needs = needs_at(root, option)
    if kind == "missing" and key == option:
        example = _example(needs)
        fix = f"pass {key}=…" if example is None else f"pass {key}={show(example)}, for example"
        return [Problem("E-CFG-11", (key,), f"it has no value; it needs {needs}", fix)]
    if kind == "missing" or (key != option and kind in ("too_long", "too_short")):
        kind = "too_short"
    elements = [leaf for each, leaf in examples.items() if each.rpartition(".")[0] == option and each[-1].isdigit()]
    example = examples.get(option, elements)
    if example in (None, value, "???", []):
        example = [value] if needs.startswith("a list") and kind == "list_type" else _example(needs)
    return [explain_type_error(option, value, needs, example, kind, str(error.get("ctx", {}).get("error", "")))]


def _example(needs: str) -> object:
    words = {
        "a whole number": 2,
        "a number": 0.1,
        "true": True,
        "one of ": needs[7:].split(", ")[0],
        "letters": "my_run",
    }
    return next((example for start, example in words.items() if needs.startswith(start)), None)


def explain_unknown_key(root: Root, key: str, examples: Collection[str]) -> Problem:
    """Explain an unknown key, or one of another scheme, scaling or attention pattern than the chosen one."""
    key = _of_list(key)
    if owners := modules_with(root, key):
        return Problem("E-CFG-01", (key,), "the chosen one has no such option", f"choose {owners}, or omit it")
    first, *inner = key.split(".")
    if any(part.startswith("_") and part.endswith("_") for part in (first, *inner)):
        text = "keys like _target_ are not used here: a config cannot name code to run"
        return Problem("E-SEC-01", (key,), text, "remove it")
    offered = dict.fromkeys([*map(_of_list, examples), *(option.key for option in options(root))])
    known = [name for name in offered if name != key]  # examples are of a file, which may hold the mistake itself
    section = key.rpartition(".")[0]
    inside = [name.rpartition(".")[2] for name in known if section and name.rpartition(".")[0] == section]
    known += [] if section else [*root.groups, *root.passthrough_groups]
    fix = f"{section} has {', '.join(inside)}" if inside else f"see `python -m {root.command} --help` for all options"
    if close := nearest(key, known):
        fix = f"did you mean {' or '.join(close)}?"
    return Problem("E-CFG-01", (key,), "unknown key", fix)


def _of_list(key: str) -> str:
    """Return the key of the list that an element is in; messages are about the list."""
    while key.rpartition(".")[2].isdigit():
        key = key.rpartition(".")[0]
    return key


def find_misplaced(root: Root, tree: dict[str, object]) -> list[Problem]:
    """Find files of a global group without `@package _global_`: all they set is one level too deep, and every other
    problem follows from that."""
    known = fields_of(root.schema)
    problems = []
    for group in (group for group in root.global_groups if group in tree):
        key = next((k for k, _ in leaves(tree[group], group) if group not in known or k.split(".")[1] in known), None)
        if key is not None:
            text = f"unknown key: {'an' if group[0] in 'aeiou' else 'a'} {group} file sets options from the top"
            problems.append(Problem("E-CFG-01", (key,), text, "make '# @package _global_' the first line of the file"))
    return problems
