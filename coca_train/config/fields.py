"""The options of the schema as a flat list: dotted key, description, what a value must be, how it is spelled."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from fnmatch import fnmatch
from functools import cache, reduce
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo

from coca_train.config.root import Root


@dataclass(frozen=True)
class Option:
    """One leaf of the configuration. `<name>` in a key is any name (of a source, of a stage)."""

    key: str
    description: str
    needs: str  # what a value must be
    values: tuple[str, ...] = ()  # all there are, where these are few


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """Return the fields of a pydantic dataclass, with descriptions and bounds."""
    assert is_pydantic_dataclass(cls)
    return cls.__pydantic_fields__


def _number(base: str, metadata: Sequence[object]) -> str:
    bounds = [
        f"{sign} {bound if isinstance(bound, int) else f'{bound:g}'}"
        for m in metadata
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
        if (bound := getattr(m, name, None)) is not None
    ]
    return " ".join([base, " and ".join(bounds)]).rstrip()


def needs(annotation: object, metadata: Sequence[object]) -> str:
    """Describe what a value of this type must be."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [part for m in args[1:] for part in getattr(m, "metadata", [m])]
        return needs(args[0], [*metadata, *inner])
    if origin in (Union, UnionType):
        kinds = [a for a in args if a is not type(None)]
        words = [
            f"{{name: {needs(get_args(a)[1], [])}}}" if get_origin(a) is dict else needs(a, metadata) for a in kinds
        ]
        return " or ".join([*words, *["null"] * (len(kinds) < len(args))])
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in args)
    if origin is list:
        return f"a list [..] of: {needs(args[0], [])}"
    if origin is tuple:
        return f"a list of {len(args)}: {needs(args[0], [])}"
    if origin is dict:
        return "a section"
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return _number("a whole number" if annotation is int else "a number", metadata)
    if any("A-Za-z0-9" in str(getattr(m, "pattern", "")) for m in metadata):
        return "a name of letters, digits, '.', '_', '-' (at most 100, the first a letter or digit)"
    return "text"


def _values(annotation: object) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return tuple(value for part in get_args(annotation) for value in _values(part))


def _walk(root: Root, cls: type, prefix: str) -> list[Option]:
    listed: list[Option] = []
    for name, field in fields_of(cls).items():
        key, kind = f"{prefix}{name}", field.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            listed += _walk(root, kind, f"{key}.")
        elif get_origin(kind) is dict and is_dataclass(get_args(kind)[1]):
            listed += _walk(root, get_args(kind)[1], f"{key}.<name>.")
        elif key not in root.registries:
            listed.append(Option(key, field.description or "", needs(kind, list(field.metadata)), _values(kind)))
    return listed


@cache
def options(root: Root) -> tuple[Option, ...]:
    """Return every option except those of modules, in the order of the schema."""
    return tuple(_walk(root, root.schema, ""))


@cache
def needs_at(root: Root, key: str) -> str:
    """Describe what a value must be at a dotted key; of an option of modules, in the first that has it."""
    for option in options(root):
        if key.count(".") == option.key.count(".") and fnmatch(key, option.key.replace("<name>", "*")):
            return option.needs
    registry, name = root.registry(key), key.rpartition(".")[2]
    for module in map(registry.module, registry.names()) if registry is not None else ():
        field = fields_of(module.Settings).get(name)
        if field is not None and key not in root.registries:
            return needs(field.annotation, list(field.metadata))
    return "a section"


def sections(root: Root) -> dict[str, str]:
    """Return the top-level sections and their descriptions."""
    about = {}
    for name, field in fields_of(root.schema).items():
        kind = get_args(field.annotation)[1] if get_origin(field.annotation) is dict else field.annotation
        own = kind.__doc__.splitlines()[0] if is_dataclass(kind) and kind.__doc__ else ""
        about[name] = own or field.description or ""
    return about


def describe_settings(path: Path) -> dict[str, str]:
    """Return the fields of the class `Settings` in a module's file, with their descriptions.

    Read from the source, because importing such a file imports torch, which help must not wait for.
    """
    types: dict[str, str] = {}  # name of a field's type -> its description
    classes: dict[str, dict[str, str]] = {}
    for file in (path.parent / "__init__.py", path):
        for node in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                types[node.targets[0].id] = _description(node.value, types)
            elif isinstance(node, ast.ClassDef):
                classes[node.name] = {
                    name: text for base in node.bases for name, text in classes.get(_name(base), {}).items()
                }
                for item in node.body:
                    if not isinstance(item, ast.AnnAssign) or "ClassVar" in ast.unparse(item.annotation):
                        continue
                    if isinstance(item.target, ast.Name):
                        own = _description(item.value, types) or _description(item.annotation, types)
                        classes[node.name][item.target.id] = own
    return classes.get("Settings", {})


def _description(node: ast.expr | None, known: dict[str, str]) -> str:
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.keyword) and part.arg == "description":
            return str(ast.literal_eval(part.value))
        if text := known.get(_name(part)):
            return text
    return ""


def _name(node: ast.AST) -> str:
    """`Theta` of `Theta` and of `rope_scaling.Theta`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def module_options(root: Root) -> dict[str, str]:
    """Return the dotted keys of the sections that modules type, over all modules, with their descriptions; where an
    option means different things, each with the modules that it is of."""
    texts = {key: {f"set by {group}=<choice>": [""]} for key, group in root.tags.items()}
    for section, registry in root.registries.items():
        for module in registry.names():
            for name, text in describe_settings(registry.source(module)).items():
                key = f"{section}.{name}"
                if key in root.registries or key in root.tags:
                    continue
                meanings = texts.setdefault(key, {})
                if text:
                    meanings.setdefault(text, []).append(module)
    return {
        key: "; ".join(f"{', '.join(modules)}: {text}" for text, modules in meanings.items())
        if len(meanings) > 1
        else "".join(meanings)
        for key, meanings in texts.items()
    }


def own_options(root: Root, tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the same of the modules that are chosen. tree: of the configuration."""
    texts = {}
    for tag in root.tags:
        section = tag.rpartition(".")[0]
        module = reduce(lambda inside, part: (inside or {}).get(part), tag.split("."), tree)
        if module in (registry := root.registries[section]).names():
            own = describe_settings(registry.source(module))
            texts |= {f"{section}.{name}": text for name, text in own.items() if text}
    return {key: text for key, text in texts.items() if key not in root.tags and key not in root.registries}


def modules_with(root: Root, key: str) -> str:
    """Return the modules that have the option at a dotted key, `attention_pattern=sinks`; "": none."""
    section, _, option = key.rpartition(".")
    if (registry := root.registries.get(section)) is None:
        return ""
    names = [name for name in registry.names() if option in describe_settings(registry.source(name))]
    return f"{section.replace('.', '/')}={' or '.join(names)}" if names else ""


# Options that do not follow Hydra's grammar: `prompt=def main(x="a, b")` would need nested quotes, `schemes=rope,coca`
# would be a sweep.


class Verbatim(str):
    """Text without interpolations."""

    __slots__ = ()


@dataclass(frozen=True)
class Spelling:
    """Marks an option with a spelling of its own. separator: a pattern, of a list that may be typed without brackets;
    "": text that is everything after the `=`."""

    separator: str = ""

    def read(self, text: str) -> Verbatim | list[str] | None:
        """Return the value; None where a list has brackets, which Hydra's grammar parses."""
        if not self.separator:
            return Verbatim(text)
        if text.startswith("["):
            return None
        return [part.strip() for part in re.split(self.separator, text) if part.strip()]


@dataclass(frozen=True)
class ChoiceOf:
    """Marks the name of a file in a folder of `configs`, for completion."""

    group: str


Mark = TypeVar("Mark", Spelling, ChoiceOf)

Text = Annotated[str, Spelling()]
Paths = Annotated[list[str], Spelling(",")]
Names = Annotated[list[str], Spelling(r"[,\s]")]


def mark_of(root: Root, key: str, kind: type[Mark]) -> Mark | None:
    """Return the mark of this kind of an option; None: it has none."""
    schema: type = root.schema
    *sections, name = key.split(".")
    for section in sections:
        field = fields_of(schema).get(section)
        if field is None or not (isinstance(field.annotation, type) and is_dataclass(field.annotation)):
            return None
        schema = field.annotation
    field = fields_of(schema).get(name)
    return next((mark for mark in field.metadata if isinstance(mark, kind)), None) if field is not None else None
