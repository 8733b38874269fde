"""Options that are not spelled as Hydra's grammar wants it: text as it is typed, and lists without brackets.

`prompt=def main(x="a, b")` would need quotes inside quotes, and `schemes=rope,coca` would be a sweep.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from coca_train.config.fields import fields_of
from coca_train.config.interpolate import Verbatim
from coca_train.config.root import Root


class AsTyped:
    """Marks text that is everything behind the `=`."""

    def read(self, text: str) -> Verbatim:
        return Verbatim(text)


@dataclass(frozen=True)
class Listed:
    """Marks a list that may be typed without brackets. separator: what stands between its parts, as a pattern."""

    separator: str

    def read(self, text: str) -> list[str] | None:
        """None: there are brackets, and Hydra's grammar reads it."""
        if text.startswith("["):
            return None
        return [part.strip() for part in re.split(self.separator, text) if part.strip()]


@dataclass(frozen=True)
class ChoiceOf:
    """Marks the name of a file in a folder of `configs`, for completion."""

    group: str


Text = Annotated[str, AsTyped()]
Paths = Annotated[list[str], Listed(",")]
Names = Annotated[list[str], Listed(r"[,\s]")]


def choice_of(root: Root, key: str) -> str:
    """The group whose choices an option names; empty when it names none."""
    return next((mark.group for mark in _marks(root, key) if isinstance(mark, ChoiceOf)), "")


def spelling_of(root: Root, key: str) -> AsTyped | Listed | None:
    """How an option is spelled; None: as everything else."""
    return next((mark for mark in _marks(root, key) if isinstance(mark, AsTyped | Listed)), None)


def _marks(root: Root, key: str) -> list[object]:
    field = fields_of(root.schema).get(key)
    return [] if field is None else field.metadata
