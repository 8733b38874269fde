"""`key=value` command lines of the small commands (generate, compare): typed by a dataclass, errors that teach."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from coca_train.runtime.errors import UserError

T = TypeVar("T")


def parse(cls: type[T], argv: Sequence[str], also: Iterable[str] = ()) -> T:
    """An instance of a dataclass from key=value words. Raises UserError for the first word that is wrong.

    also: names that the command takes elsewhere, for suggestions.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for word in argv:
        key, equals, text = word.partition("=")
        if not equals or key not in fields:
            names = [*fields, *also]
            near = difflib.get_close_matches(key, names, 1)
            fix = f"write {near[0]}=..." if near else f"options are {', '.join(names)}, each as key=value"
            raise UserError(f"E-CFG-01 command line {word!r}: no such option. Fix: {fix}")
        values[key] = _typed(key, text, fields[key].type)
    missing = [f.name for f in fields.values() if f.name not in values and f.default is dataclasses.MISSING]
    if missing:
        raise UserError(f"E-CFG-16 command line {missing[0]}: not given; it is needed. Fix: add {missing[0]}=...")
    return cls(**values)


def _typed(key: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        needs = "one of " + ", ".join(get_args(kind))
    elif kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        needs = "true or false"
    else:
        try:
            return kind(text)
        except ValueError:
            needs = {int: "a whole number", float: "a number"}[kind]
    raise UserError(f"E-CFG-02 command line {key}={text}: must be {needs}. Fix: give {key} {needs}")
