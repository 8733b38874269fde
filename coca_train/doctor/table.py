"""The doctor's table: a row for each check, a column for each rank where they fit, and below it what is out of line."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coca_train.runtime.errors import UserError
from coca_train.runtime.printing import WIDTH, plain

MOST_VALUES = 3  # that a row shows where ranks differ and have no columns


@dataclass(frozen=True)
class Finding:
    """Something out of line, as a line for the user.

    code: "" for an error of another package, which `what` quotes in full. must: fix it before a run; otherwise a run
    works with it. kind: the error whose exit code it gives.
    """

    code: str
    where: str
    what: str
    fix: str
    must: bool = True
    kind: type[UserError] = UserError

    def __str__(self) -> str:
        if not self.code:
            return f"{self.what} ({self.where})" if self.where else self.what
        return f"{self.code} {self.where}: {self.what}. Fix: {self.fix}"


@dataclass(frozen=True)
class Row:
    """A check. cells: by rank. summary: shown in their place. brief: shown in their place where ranks have no
    columns."""

    check: str
    cells: Sequence[str]
    findings: Sequence[Finding] = ()
    summary: str = ""
    brief: str = ""

    @property
    def mark(self) -> str:
        """! must be fixed, ~ out of line but a run works with it."""
        return "!" if any(each.must for each in self.findings) else "~" if self.findings else ""

    @property
    def common(self) -> str:
        """What holds for all ranks; "" where they differ."""
        return self.summary or (self.cells[0] if len(set(self.cells)) == 1 else "")


def rank_ranges(ranks: Iterable[int]) -> str:
    """Write [0, 1, 2, 5] as "0-2, 5"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def name_ranks(ranks: Iterable[int]) -> str:
    """Write [3] as "rank 3", [0, 1, 2, 5] as "ranks 0-2, 5"."""
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {rank_ranges(numbers)}"


def group_by_value(values: Sequence[str]) -> dict[str, list[int]]:
    """Return the ranks of each value, the most frequent value first, then that of the lowest rank."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return dict(sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1][0])))


def find_differing(values: Sequence[str], describe: Callable[[str, str], Finding]) -> list[Finding]:
    """Return one finding where ranks differ: describe(the ranks that differ and their values, what most have)."""
    (common, _), *others = group_by_value(values).items()
    differing = "; ".join(f"{value or 'none'} on {name_ranks(ranks)}" for value, ranks in others)
    return [describe(differing, common or "none")] if others else []


def print_table(rows: Sequence[Row], n_ranks: int) -> str:
    """Return all rows as text; each rank has a column where they all fit into a terminal."""
    if not rows:
        return ""
    names = [f"rank {rank}" for rank in range(n_ranks)]
    widths = [max(map(len, cells)) for cells in zip(names, *(row.cells for row in rows if not row.common), strict=True)]
    wide = max(len(row.check) for row in rows)
    if n_ranks == 1 or wide + 5 + sum(widths) + 2 * (n_ranks - 1) > WIDTH:
        lines = [(row.mark or " ", row.check, row.common or row.brief or _list_values(row.cells)) for row in rows]
        return plain(("", "check", "all ranks" if n_ranks > 1 else "this machine"), lines, n_left=3)

    def align(cells: Iterable[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    lines = [("", "check", align(names)), ("-", "-" * wide, align("-" * width for width in widths))]
    lines += [(row.mark, row.check, row.common or align(row.cells)) for row in rows]
    return "\n".join(f"{mark:1}  {check:<{wide}}  {shown}" for mark, check, shown in lines) + "\n"


def _list_values(cells: Sequence[str]) -> str:
    parts = [f"{value or 'none'} ({name_ranks(ranks)})" for value, ranks in group_by_value(cells).items()]
    return "; ".join(parts[:MOST_VALUES]) + (f"; {len(parts) - MOST_VALUES} more" if len(parts) > MOST_VALUES else "")


def list_findings(rows: Sequence[Row]) -> list[Finding]:
    """Return the findings of all rows, those first that must be fixed."""
    return sorted((finding for row in rows for finding in row.findings), key=lambda finding: not finding.must)


def print_findings(rows: Sequence[Row]) -> str:
    """Return what is out of line, a marked line each, or that nothing is."""
    findings = list_findings(rows)
    if not findings:
        return "Nothing is out of line.\n"
    n_must = sum(finding.must for finding in findings)
    head = f"{n_must} must be fixed, {len(findings) - n_must} worth a look:"
    return "\n".join([head, *(f"{'!' if each.must else '~'} {each}" for each in findings)]) + "\n"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 0, or the code of the first finding that must be fixed: 3 data, 7 disk, 2 anything else."""
    return next((finding.kind.exit_code for finding in list_findings(rows) if finding.must), 0)
