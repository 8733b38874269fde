"""Command-line overrides: read with Hydra's own grammar, applied one at a time, every problem kept."""

import re
import shlex
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.config.compose import Assembled
from coca_train.config.fields import Spelling, mark_of, options
from coca_train.config.files import choices, folders_with
from coca_train.config.inheritance import merge
from coca_train.config.messages import Problem, is_secret, show
from coca_train.config.places import DEEPEST
from coca_train.config.root import Root

if TYPE_CHECKING:  # help without overrides does not wait for Hydra
    from hydra.core.override_parser.types import Override


LONGEST = 20_000  # characters of a word; the grammar reads some ten thousand a second


@dataclass
class Parsed:
    """Choices of groups, and values in the order they were typed."""

    groups: dict[str, str] = field(default_factory=dict)  # group -> option
    values: list["Override"] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def override_place(raw: str) -> str:
    """Return how messages name an override, without the secret it may hold."""
    return f"command line {redact(raw)}"


def redact(raw: str) -> str:
    """Return an override on one line, without the secret it may hold."""
    key, equals, value = raw.partition("=")
    return f"{show(key)}{equals}{'***' if is_secret(key.strip(), value) else show(value)}"


def override_problem(raw: str, message: str, fix: str, id: str = "E-CFG-16") -> Problem:
    """Return a problem of an override as such."""
    return Problem(id, (), message, fix, override_place(raw))


def parse(root: Root, overrides: list[str], dirs: tuple[Path, ...]) -> Parsed:
    """Sort overrides into group choices and values."""
    parsed = Parsed()
    if not overrides:
        return parsed
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override, OverrideType, ValueType
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for raw in overrides:
        key, equals, text = raw.partition("=")
        # Verbatim text does not go through the grammar, which would need nested quotes and would parse ${…} and commas.
        spelling = mark_of(root, key, Spelling) if equals else None
        value: object = None if spelling is None else spelling.read(text)
        if spelling is None and (problem := _too_much(raw)):
            parsed.problems.append(override_problem(raw, *problem))
            continue
        try:
            override = (
                parser.parse_override(raw)
                if value is None
                else Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value, input_line=raw)
            )
        except (HydraException, ValueError):  # ValueError: a number with thousands of digits
            parsed.problems.append(_unreadable(root, raw))
            continue
        name, value = override.key_or_group.strip(), override.value()
        chooses = name in root.groups and not isinstance(value, dict)  # `position={…}` sets values in the section
        if chooses:
            problem = _refused_choice(root, override, name, dirs)
        else:
            sweeps = override.is_sweep_override()
            problem = _refused_key(root, name, dirs, override.package, value, sweeps)
        if problem:
            parsed.problems.append(override_problem(raw, *problem))
        elif chooses:
            parsed.groups[name] = str(value)
        else:
            parsed.values.append(override)
    return parsed


def _too_much(raw: str) -> tuple[str, str] | None:
    """Return problem and fix of a word that would take Hydra's grammar minutes, or overflow its stack."""
    if len(raw) > LONGEST:
        return f"{len(raw):,} characters, more than {LONGEST:,}", "write a long list into a file: --config-dir"
    depth = deepest = 0
    for sign in raw:
        depth += (sign in "[{(") - (sign in "]})")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return f"nested {deepest} levels deep, more than {DEEPEST}", "close what is open"
    return None


def _refused_choice(root: Root, override: "Override", group: str, dirs: tuple[Path, ...]) -> tuple[str, ...] | None:
    """Return problem and fix of the choice of a group, and the code unless it is E-CFG-16; None: nothing is wrong."""
    names, value = list(choices(group, dirs)), override.value()
    if override.is_delete():
        return f"{group} cannot be removed, a run needs it", f"choose one: {', '.join(names)}"
    if override.is_sweep_override():
        each = "add --multirun to run each" if root.swept else f"write {group}={names[0]}"
        return f"several choices for {group}", each
    if override.package is not None:
        return "a group cannot be put elsewhere here", f"write {group}={show(value)}"
    if value not in names:
        if folders := folders_with(group, str(value)):
            text = f"there is no {group} {show(value)} among the shipped choices, but {folders[0]} has it"
            return text, f"add --config-dir {shlex.quote(str(folders[0]))}", "E-CFG-32"
        best = next(iter(get_close_matches(str(value), names, n=1)), names[0])
        text = f"there is no {group} {show(value)}; the choices are {', '.join(names)}"
        return text, f"write {group}={best}", "E-CFG-32"
    return None


def _refused_key(
    root: Root, key: str, dirs: tuple[Path, ...], package: str | None, value: object, sweeps: bool
) -> tuple[str, ...] | None:
    """Return the same of an option's key. package: after an @. sweeps: whether the value is a sweep over several."""
    is_section = isinstance(value, dict)
    if package is not None or "/" in key:
        close = get_close_matches(key, root.groups, n=1)
        fix = f"did you mean {close[0]}=…?" if close else f"groups are {', '.join(root.groups)}"
        return f"there is no config group {show(key)}", fix, "E-CFG-32"
    if key.split(".")[0] == "hydra" and root.place:
        text = "Hydra only composes the configuration here; its own settings have no effect"
        return text, f"set {root.place} for the place, --config-dir for more files"
    group = root.tags.get(key, key.replace(".", "/"))
    if key in root.tags or (group in root.groups and not is_section):
        names = choices(group, dirs)
        name = value if value in names else "<choice>"
        return f"{key} follows from the choice of {group}", f"write {group}={name}; there are {', '.join(names)}"
    if sweeps:
        each = "add --multirun to run each" if root.swept else f"write one, or a list as {key}=[a,b]"
        return "several values for one option", f"{each}, or quote text with commas: \"{key}='a,b'\""
    if not is_section and any(option.key.startswith(f"{key}.") for option in options(root)):
        return "is a section, not a value", f"set an option inside it: {key}.<option>=…", "E-CFG-34"
    return None


def _unreadable(root: Root, raw: str) -> Problem:
    how = f"write key=value without spaces, e.g. {root.examples}"
    if re.search(r"\s=|=\s", raw):
        tight = re.sub(r"\s*=\s*", "=", raw, count=1)
        return override_problem(raw, "there is a space next to the =", f"write {redact(tight)}")
    if raw.startswith("-"):
        how = f"see `python -m {root.command} --help`; options are written without dashes"
        return override_problem(raw, f"not a flag of {root.command}", how)
    if "=" not in raw:
        return override_problem(raw, "not an override: there is no =", how)
    key, _, value = redact(raw).partition("=")
    if value[:1] in "[{" or "'" in value:
        return override_problem(raw, "not readable as an override: a bracket or quote is open", how)
    if value.startswith("~"):
        return override_problem(raw, "~ means nothing here", f"write {key}=$HOME{value[1:]}")
    return override_problem(raw, "special characters must be quoted", f"write \"{key}='{value}'\"")


def apply_override(a: Assembled, override: "Override") -> list[Problem]:
    """Set or delete one value in the merged tree; return what is wrong with it."""
    raw, key, tree = override.input_line or "", override.key_or_group, a.tree
    if override.is_add() and key in a.examples:
        return [override_problem(raw, "+ adds a new key, and this one exists", f"write {redact(raw.lstrip('+'))}")]
    if override.is_delete() and (key in a.examples or key in tree):
        value = a.examples.get(key, "…")
        return [
            override_problem(
                raw, f"{key} cannot be removed, a run needs it", f"write {key}={show(value)}, or another value"
            )
        ]
    above, _, name = key.rpartition(".")
    node: object = tree
    for part in above.split(".") if above else ():
        node = node.setdefault(part, {}) if isinstance(node, dict) else node
    if not isinstance(node, dict):
        kind, fix = ("a list", f"write the whole list: {above}=[…]") if isinstance(node, list) else ("a value", "")
        return [override_problem(raw, f"{above} is {kind} and has no keys inside", fix or f"set {above} itself")]
    if not override.is_delete():
        value: object = override.value()
        # Option by option, even in a section that names a choice: the command line sets single values.
        own = node.get(name)
        node[name] = merge(own if isinstance(own, dict) else {}, value, named={}) if isinstance(value, dict) else value
    elif name in node:
        del node[name]
    else:
        return [override_problem(raw, f"there is no {key} to remove", f"there are: {', '.join(node) or 'none'}")]
    a.typed[key] = raw.partition("=")[2]
    return []
