"""Another choice of a group, and its options, over the settings of trained weights: `dynamic_ntk@alpha:4`.

Nothing here knows a scheme: the training's settings come as its `Root`.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from coca_train.config.compose import Assembled
from coca_train.config.files import choices, config_dir
from coca_train.config.load import resolve
from coca_train.config.messages import Problem
from coca_train.config.overrides import apply, parse, place, wrong
from coca_train.config.parts import GROUPS, LOGIT_SCALE, NAMED, exchanged
from coca_train.config.places import read
from coca_train.config.root import Root
from coca_train.config.strict import type_sections
from coca_train.runtime.trees import leaves, section

HOW = "choose attention_pattern=… or position/rope_scaling=…, and set options inside them or in model.logit_scale"
SECTIONS = {**GROUPS, LOGIT_SCALE: LOGIT_SCALE}  # what is varied -> where its options stand
SPELLING = "an option is written choice@option:value"
EXAMPLES = {
    "position/rope_scaling": "dynamic_ntk@alpha:4",
    "attention_pattern": "sinks@window:64",
    LOGIT_SCALE: "log@length:2048",
}


def words(group: str, text: str) -> list[str]:
    """Return a choice of `group` (of SECTIONS) with its options, `dynamic_ntk@alpha:4`, as words of a command line.

    The one spelling wherever other settings are listed to be tried: of a grid, of a training's own report and probes,
    of `compare`. Raises ValueError where it is written otherwise.
    """
    name, *options = text.split("@")
    pairs = [option.partition(":") for option in options]
    if not all(key and colon and value for key, colon, value in pairs):
        raise ValueError(SPELLING)
    choice = f"{group}={name}" if group in GROUPS else f"{group}.name={name}"
    return [choice, *(f"{SECTIONS[group]}.{key}={value}" for key, _, value in pairs)]


def option_problems(root: Root, option: str, sections: dict[str, Any], group: str, text: str) -> list[Problem]:
    """Return what is wrong with the options of an existing choice of `group`, as the list `option` has them.

    sections: a training's, as plain values. Whether the weights can have the choice is another matter (`vary`).
    """
    try:
        words(group, text)
    except ValueError as error:
        return [Problem("E-CFG-16", (option,), f"{text}: {error}", f"write {option}=[{EXAMPLES[group]}]")]
    name, *pairs = text.split("@")
    above, _, axis = GROUPS[group].rpartition(".")
    if any(pair.startswith(f"{NAMED[axis]}:") for pair in pairs):
        fix = f"write {option}=[{EXAMPLES[group]}], for example"
        return [Problem("E-CFG-16", (option,), f"{text}: {NAMED[axis]} follows from the choice", fix)]
    parent = section(sections, above) if above else sections
    parent[axis] = exchanged(group, name, parent[axis])
    examples = dict(leaves(parent[axis], GROUPS[group]))
    parent[axis] |= {key: _value(value) for key, _, value in (pair.partition(":") for pair in pairs)}
    tree, without_value = resolve(sections)
    _, mistyped = type_sections(root, {above or axis: tree[above or axis]}, examples)
    prefix = re.escape(GROUPS[group])

    def spelled(line: str) -> str:
        line = re.sub(rf"{prefix}\.(\w+)=([^,\s]+)", rf"{option}=[{name}@\1:\2]", line)
        return re.sub(rf"\b{prefix}$", text, line.replace(f"{GROUPS[group]}.", ""))

    return [
        Problem(each.id, (option,), f"{text}: {spelled(each.message)}", spelled(each.fix))
        for each in [*without_value, *mistyped]
    ]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def assembled(root: Root, sections: dict[str, Any], overrides: Sequence[str]) -> Assembled:
    """Put other choices and options into trained settings, unchecked. sections: as plain values."""
    a, parsed = Assembled(root, sections), parse(root, list(overrides), (config_dir(),))
    a.problems += parsed.problems
    scheme = section(a.tree, "position").get("scheme", "")
    for group, name in parsed.groups.items():
        a.problems += _choose(a, scheme, group, name)
    a.examples = dict(leaves(a.tree))
    for override in parsed.values:
        if override.key_or_group.startswith(tuple(f"{prefix}." for prefix in SECTIONS.values())):
            a.problems += apply(a, override)
        else:
            text = "the weights were trained with it, so it cannot change"
            a.problems.append(wrong(override.input_line or "", text, HOW))
    return a


def _choose(a: Assembled, scheme: str, group: str, name: str) -> list[Problem]:
    """Put the file of a choice in its place. scheme: of the weights."""
    where = place(f"{group}={name}")
    if group not in GROUPS:
        text = "the weights were trained with their own, so it cannot change"
        return [Problem("E-CFG-16", (), text, HOW, where)]
    above, _, axis = GROUPS[group].rpartition(".")
    parent = section(a.tree, above) if above else a.tree
    if axis not in parent:
        text = f"the weights were trained with {scheme}, which has no {axis}"
        return [Problem("E-CFG-33", (), text, f"omit {group}", where)]
    parent[axis] = exchanged(group, name, parent[axis])
    return read(choices(group, (config_dir(),))[name], GROUPS[group], a.places)
