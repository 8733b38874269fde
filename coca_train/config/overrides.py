"""Command-line overrides: read with Hydra's own grammar, applied one at a time, every problem kept."""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coca_train.config import spelling
from coca_train.config.files import choices
from coca_train.config.interpolate import Verbatim
from coca_train.config.messages import Problem, is_secret, nearest, show
from coca_train.config.root import Root

if TYPE_CHECKING:  # help without overrides does not wait for Hydra
    from hydra.core.override_parser.types import Override


@dataclass
class Parsed:
    """What the command line asks for."""

    groups: dict[str, str] = field(default_factory=dict)  # group -> option
    values: list["Override"] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def place(raw: str) -> str:
    """How messages name an override, without the secret it may hold."""
    return f"command line {redacted(raw)}"


def redacted(raw: str) -> str:
    """An override on one line, without the secret it may hold."""
    key, equals, value = raw.partition("=")
    return f"{show(key)}{equals}{'***' if is_secret(key.strip(), value) else show(value)}"


def wrong(raw: str, message: str, fix: str, id: str = "E-CFG-16") -> Problem:
    """A problem of an override as such."""
    return Problem(id, (), message, fix, place(raw))


def parse(root: Root, overrides: list[str], dirs: tuple[Path, ...], known: list[str]) -> Parsed:
    """Sort overrides into group choices and values. known: dotted keys, for suggestions."""
    parsed = Parsed()
    if not overrides:
        return parsed
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for raw in overrides:
        try:
            override = spelling.read(root, raw) or parser.parse_override(raw)
        except HydraException:
            parsed.problems.append(_unreadable(root, raw))
            continue
        key = override.key_or_group.strip()
        if key in root.groups and not _is_mapping(override):
            _choose(root, parsed, override, key, dirs)
        elif override.package is not None or "/" in key:
            close = get_close_matches(key, root.groups, n=1)
            fix = f"did you mean {close[0]}=…?" if close else f"groups are {', '.join(root.groups)}"
            parsed.problems.append(wrong(raw, f"there is no config group {show(key)}", fix, "E-CFG-32"))
        elif key.split(".")[0] == "hydra" and root.place:
            text = "Hydra only composes the configuration here; its own settings have no effect"
            parsed.problems.append(wrong(raw, text, f"set {root.place} for the place, --config-dir for more files"))
        elif key in root.tags or (key.replace(".", "/") in root.groups and not _is_mapping(override)):
            group = root.tags.get(key, key.replace(".", "/"))
            text = f"{key} follows from the choice of {group}"
            parsed.problems.append(
                wrong(raw, text, f"write {group}=<choice>; there are {', '.join(choices(group, dirs))}")
            )
        elif override.is_sweep_override():
            each = "add --multirun to run each" if root.swept else f"write one, or a list as {key}=[a,b]"
            fix = f"{each}, or quote text with commas: \"{key}='a,b'\""
            parsed.problems.append(wrong(raw, "several values for one option", fix))
        elif "." not in key and key not in known and not _is_mapping(override):
            close = nearest(key, [*root.groups, *root.beside, *known])
            fix = f"did you mean {' or '.join(close)}?" if close else f"see `python -m {root.command} --help`"
            section = any(k.startswith(f"{key}.") for k in known)
            text, id = ("is a section, not a value", "E-CFG-34") if section else ("unknown key", "E-CFG-01")
            parsed.problems.append(
                wrong(raw, text, f"set an option inside it: {key}.<option>=…" if section else fix, id)
            )
        else:
            parsed.values.append(override)
    return parsed


def _is_mapping(override: "Override") -> bool:
    return isinstance(override.value(), dict)


def _unreadable(root: Root, raw: str) -> Problem:
    how = f"write key=value without spaces, e.g. {root.examples}"
    if re.search(r"\s=|=\s", raw):
        tight = re.sub(r"\s*=\s*", "=", raw, count=1)
        return wrong(raw, "there is a space beside the =", f"write {redacted(tight)}")
    if "=" not in raw and not raw.startswith("-"):
        return wrong(raw, "not an override: there is no =", how)
    if raw.startswith("-"):
        return wrong(
            raw,
            f"not a flag of {root.command}",
            f"see `python -m {root.command} --help`; options are written without dashes",
        )
    key, _, value = redacted(raw).partition("=")
    if value[:1] in "[{" or "'" in value:
        return wrong(raw, "not readable as an override: a bracket or quote is open", how)
    return wrong(raw, "special characters must be quoted", f"write \"{key}='{value}'\"")


def _choose(root: Root, parsed: Parsed, override: "Override", group: str, dirs: tuple[Path, ...]) -> None:
    raw, option, found = override.input_line or "", override.value(), choices(group, dirs)
    if override.is_delete():
        parsed.problems.append(
            wrong(raw, f"{group} cannot be removed, a run needs it", f"choose one: {', '.join(found)}")
        )
    elif override.is_sweep_override():
        fix = "add --multirun to run each" if root.swept else f"write {group}={next(iter(found))}"
        parsed.problems.append(wrong(raw, f"several choices for {group}", fix))
    elif override.package is not None:
        parsed.problems.append(wrong(raw, "a group cannot be put elsewhere here", f"write {group}={show(option)}"))
    elif not isinstance(option, str) or option not in found:
        close = get_close_matches(str(option), list(found), n=1)
        fix = f"write {group}={close[0] if close else next(iter(found))}"
        text = f"there is no {group} {show(option)}; the choices are {', '.join(found)}"
        parsed.problems.append(wrong(raw, text, fix, "E-CFG-32"))
    else:
        parsed.groups[group] = option


def apply(tree: dict[str, Any], override: "Override", known: list[str]) -> Problem | None:
    """Set (or delete) one value in the composed tree. known: keys that always exist."""
    raw, key = override.input_line or "", override.key_or_group
    if override.is_add() and key in known:
        return wrong(raw, "+ adds a new key, and this one exists", f"write {redacted(raw.lstrip('+'))}")
    if override.is_delete() and (key in known or key in tree):
        return wrong(raw, f"{key} cannot be removed, a run needs it", f"set it: {key}=…")
    *parents, last = key.split(".")
    node: Any = tree
    for name in parents:
        node = node.setdefault(name, {}) if isinstance(node, dict) else node
    if not isinstance(node, dict):
        parent = ".".join(parents)
        whole = f"write the whole list: {parent}=[…]" if isinstance(node, list) else f"set {parent} itself"
        return wrong(
            raw, f"{parent} is {'a list' if isinstance(node, list) else 'a value'} and has no keys inside", whole
        )
    if override.is_delete():
        if last not in node:
            return wrong(raw, f"there is no {key} to remove", f"there are: {', '.join(node) or 'none'}")
        del node[last]
        return None
    _merge(node, last, override.value())
    return None


def _merge(node: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, dict) and isinstance(node.get(name), dict):
        for key, part in value.items():
            _merge(node[name], str(key), part)
    else:
        node[name] = plain(value)


def plain(value: Any) -> Any:
    """Hydra's quoted strings and containers as plain Python."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, Verbatim)) or value is None else str(value)
