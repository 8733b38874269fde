"""Options that are not spelled as Hydra's grammar wants it: text as it is typed, and lists without brackets.

`prompt=def main(x="a, b")` would need quotes inside quotes, and `schemes=rope,coca` would be a sweep.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from coca_train.config.fields import fields_of
from coca_train.config.interpolate import Verbatim
from coca_train.config.root import Root

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


class AsTyped:
    """Marks text that is everything behind the `=`."""


@dataclass(frozen=True)
class Listed:
    """Marks a list that may be typed without brackets. separator: what stands between its parts, as a pattern."""

    separator: str


@dataclass(frozen=True)
class ChoiceOf:
    """Marks the name of a file in a folder of `configs`, for completion."""

    group: str


Text = Annotated[str, AsTyped()]
Paths = Annotated[list[str], Listed(",")]
Names = Annotated[list[str], Listed(r"[,\s]")]


def choice_of(root: Root, key: str) -> str:
    """The group whose choices an option names; empty when it names none."""
    field = fields_of(root.schema).get(key)
    return next((mark.group for mark in field.metadata if isinstance(mark, ChoiceOf)), "") if field is not None else ""


def read(root: Root, raw: str) -> "Override | None":
    """The override that a word is, where its option has such a spelling; None: Hydra's grammar reads it."""
    key, equals, text = raw.partition("=")
    field = fields_of(root.schema).get(key)
    for mark in field.metadata if field is not None and equals else ():
        if isinstance(mark, AsTyped):
            return _override(raw, key, Verbatim(text))
        if isinstance(mark, Listed) and not text.startswith("["):
            return _override(raw, key, [part.strip() for part in re.split(mark.separator, text) if part.strip()])
    return None


def _override(raw: str, key: str, value: str | list[str]) -> "Override":
    from hydra.core.override_parser.types import Override, OverrideType, ValueType

    return Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value, input_line=raw)  # pyright: ignore[reportArgumentType]
