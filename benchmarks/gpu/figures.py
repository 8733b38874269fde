"""Figures of an hour, what was expected of each, and where that came from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coca_train.runtime.printing import markdown

COUNTED = 0.25  # what a counted time may be off, as a share of it: rates are of other people's measurements


@dataclass(frozen=True)
class Figure:
    """part: of the hour. low, high: what was expected; infinite: no bound on that side. by: what says so; "": nothing
    was expected, the figure is for the record."""

    part: str
    what: str
    value: float
    unit: str
    low: float = -math.inf
    high: float = math.inf
    by: str = ""

    @property
    def met(self) -> bool | None:
        """None: nothing was expected."""
        return None if not self.by else self.low <= self.value <= self.high

    @property
    def expected(self) -> str:
        if not self.by:
            return "-"
        if math.isinf(self.low):
            return f"at most {number(self.high)}"
        if math.isinf(self.high):
            return f"at least {number(self.low)}"
        return f"{number(self.low)} to {number(self.high)}"

    def as_json(self) -> dict[str, Any]:
        """Bounds that are none are left out."""
        return {key: value for key, value in asdict(self).items() if value not in (math.inf, -math.inf)}


def counted(part: str, what: str, value: float, unit: str, expected: float) -> Figure:
    """A time that the roofline page has counted."""
    return Figure(part, what, value, unit, expected * (1 - COUNTED), expected * (1 + COUNTED), "counted by plan")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(figures: Iterable[Figure]) -> str:
    """A row a figure."""
    words = {True: "yes", False: "**no**", None: ""}
    rows = [
        [each.part, each.what, f"{number(each.value)} {each.unit}", each.expected, each.by, words[each.met]]
        for each in figures
    ]
    return markdown(["part", "what", "measured", "expected", "by", "met"], rows, n_left=2)


def verdict(figures: Sequence[Figure]) -> str:
    """In a line."""
    judged = [each for each in figures if each.met is not None]
    return f"{sum(bool(each.met) for each in judged)} of {len(judged)} expected figures met, {len(figures)} measured"
