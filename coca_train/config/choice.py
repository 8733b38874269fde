"""Another choice of a config group, with options, for trained weights: `dynamic_ntk@alpha:4`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coca_train.config.compose import Assembled
from coca_train.config.files import choices, config_dirs
from coca_train.config.inheritance import GROUPS, LOGIT_SCALE, NAMED, put_choice
from coca_train.config.load import resolve
from coca_train.config.messages import Problem
from coca_train.config.overrides import apply_override, override_place, override_problem, parse
from coca_train.config.places import note_places
from coca_train.config.root import ConfigT, Root
from coca_train.config.strict import type_sections
from coca_train.runtime.trees import leaves, section

HOW = "choose attention_pattern=… or position/rope_scaling=…, and set options inside them or in model.logit_scale"
SECTIONS = {**GROUPS, LOGIT_SCALE: LOGIT_SCALE}  # what is varied -> the section of its options
SPELLING = "an option is written choice@option:value"
EXAMPLES = {
    "position/rope_scaling": "dynamic_ntk@alpha:4",
    "attention_pattern": "sinks@window:64",
    LOGIT_SCALE: "log@length:2048",
}


class Selection(NamedTuple):
    """A choice of a config group by its name, and the options in which it differs from the choice's file."""

    name: str
    options: Mapping[str, object] = {}

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Read `dynamic_ntk@alpha:4`. Raises ValueError where an option is not written as key:value."""
        name, options = _split(text)
        return cls(name, {key: _scalar(value) for key, value in options.items()})


def _split(text: str) -> tuple[str, dict[str, str]]:
    name, *options = text.split("@")
    pairs = [option.partition(":") for option in options]
    if not all(key and colon and value for key, colon, value in pairs):
        raise ValueError(SPELLING)
    return name, {key: value for key, _, value in pairs}


def _scalar(text: str) -> object:
    """Return a value as YAML and the command line read it: 4, 0.5, 1e-3, true, null, [1, 2]; text otherwise."""
    for convert in (json.loads, float):
        try:
            return convert(text.lower() if text.lower() in ("true", "false", "null") else text)
        except ValueError:
            continue
    return text


def words(group: str, text: str) -> list[str]:
    """Return a selection from `group` (of SECTIONS), `dynamic_ntk@alpha:4`, as words of a command line.

    Raises ValueError where it is written otherwise.
    """
    name, options = _split(text)
    choice = f"{group}={name}" if group in GROUPS else f"{group}.name={name}"
    return [choice, *(f"{SECTIONS[group]}.{key}={value}" for key, value in options.items())]


def option_problems(root: Root, option: str, sections: dict[str, object], group: str, text: str) -> list[Problem]:
    """Return what is wrong with the options of an existing choice of `group`, an element of the list at `option`.

    sections: a training's, as plain values. `vary` checks whether weights can have the choice.
    """
    try:
        name, options = Selection.parse(text)
    except ValueError as error:
        return [Problem("E-CFG-16", (option,), f"{text}: {error}", f"write {option}=[{EXAMPLES[group]}]")]
    key = GROUPS[group]
    if (tag := NAMED[key.rpartition(".")[2]]) in options:
        fix = f"write {option}=[{EXAMPLES[group]}], for example"
        return [Problem("E-CFG-16", (option,), f"{text}: {tag} follows from the choice", fix)]
    put_choice(sections, group, name)
    examples = dict(leaves(section(sections, key), key))
    section(sections, key).update(options)
    tree, without_value = resolve(sections)
    top = key.partition(".")[0]
    _, mistyped = type_sections(root, {top: tree[top]}, examples)
    prefix = re.escape(key)

    def spelled(line: str) -> str:
        line = re.sub(rf"{prefix}\.(\w+)=([^,\s]+)", rf"{option}=[{name}@\1:\2]", line)
        return re.sub(rf"\b{prefix}$", text, line.replace(f"{key}.", ""))

    return [
        Problem(each.id, (option,), f"{text}: {spelled(each.message)}", spelled(each.fix))
        for each in [*without_value, *mistyped]
    ]


def assemble_over(root: Root[ConfigT], sections: Mapping[str, object], overrides: Sequence[str]) -> Assembled[ConfigT]:
    """Apply choices and options of a command line to trained settings, unchecked. sections: as plain values."""
    a, parsed = Assembled(root, dict(sections)), parse(root, list(overrides), config_dirs())
    a.problems += parsed.problems
    for group, name in parsed.groups.items():
        a.problems += _choose(a, group, name)
    a.examples = dict(leaves(a.tree))
    for override in parsed.values:
        if override.key_or_group.startswith(tuple(f"{prefix}." for prefix in SECTIONS.values())):
            a.problems += apply_override(a, override)
        else:
            text = "the weights were trained with it, so it cannot change"
            a.problems.append(override_problem(override.input_line or "", text, HOW))
    return a


def _choose(a: Assembled, group: str, name: str) -> list[Problem]:
    """Replace a section by the file of a choice."""
    where = override_place(f"{group}={name}")
    if group not in GROUPS:
        text = "the weights were trained with their own, so it cannot change"
        return [Problem("E-CFG-16", (), text, HOW, where)]
    if not section(a.tree, GROUPS[group]):
        scheme, axis = section(a.tree, "position").get("scheme", ""), group.rpartition("/")[2]
        text = f"the weights were trained with {scheme}, which has no {axis}"
        return [Problem("E-CFG-33", (), text, f"omit {group}", where)]
    put_choice(a.tree, group, name)
    return note_places(choices(group, config_dirs())[name], GROUPS[group], a.places)
