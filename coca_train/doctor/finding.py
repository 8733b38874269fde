"""A row of the table, and what is out of line in it."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coca_train.doctor.roll import in_words
from coca_train.runtime.errors import UserError


@dataclass(frozen=True)
class Finding:
    """A line for the user, as of a UserError. must: it is to be mended before a run; else a run works with it. kind:
    for the exit code."""

    code: str
    where: str
    what: str
    fix: str
    must: bool = True
    kind: type[UserError] = UserError

    def __str__(self) -> str:
        return f"{self.code} {self.where}: {self.what}. Fix: {self.fix}"


@dataclass(frozen=True)
class Quoted(Finding):
    """An error of another room, in its own words, which are `what`."""

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


@dataclass(frozen=True)
class Row:
    """A check. cells: by rank. summary: in place of them, where all are about one thing. brief: in place of them where
    ranks have no columns; "": the values with their ranks."""

    check: str
    cells: Sequence[str]
    findings: Sequence[Finding] = ()
    summary: str = ""
    brief: str = ""

    @property
    def mark(self) -> str:
        """! must be mended, ~ out of line but a run works with it."""
        return "!" if any(each.must for each in self.findings) else "~" if self.findings else ""


def ranks_in_words(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2, 5"."""
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {in_words(numbers)}"


def unlike(values: Sequence[str]) -> dict[str, list[int]]:
    """Ranks by value, the most frequent first; what the lowest rank has where two are as frequent."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    return dict(sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1][0])))


def differing(values: Sequence[str], describe: Callable[[str, str], Finding]) -> list[Finding]:
    """One finding where ranks differ: describe(those that differ, what most have)."""
    (common, _), *others = unlike(values).items()
    if not others:
        return []
    return [describe("; ".join(f"{value or 'none'} on {ranks_in_words(ranks)}" for value, ranks in others), common)]


def spread(values: Sequence[float], words: Callable[[float], str]) -> str:
    """The least, the median and the most of all ranks."""
    return f"{words(min(values))} to {words(max(values))}, median {words(statistics.median(values))}" if values else ""
