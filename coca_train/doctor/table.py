"""The doctor's table: a row a check, a column a rank where there are few, and below it what is out of line."""

from collections.abc import Sequence

from coca_train.doctor.finding import Finding, Row, unlike
from coca_train.doctor.roll import in_words
from coca_train.runtime.printing import WIDTH, plain

MOST_VALUES = 3  # shown of a row where ranks differ and have no columns


def table(rows: Sequence[Row], n_ranks: int) -> str:
    """All rows; columns of ranks only where they fit into a terminal. What is the same for all stands across them."""
    if not rows:
        return ""
    names = [f"rank {rank}" for rank in range(n_ranks)]
    differing = [row.cells for row in rows if not _whole(row)]
    widths = [max(map(len, column)) for column in zip(names, *differing, strict=True)]
    wide = max(len(row.check) for row in rows)
    if n_ranks == 1 or wide + 5 + sum(widths) + 2 * (n_ranks - 1) > WIDTH:
        lines = [(row.mark or " ", row.check, _whole(row) or row.brief or _values(row.cells)) for row in rows]
        return plain(("", "check", "all ranks" if n_ranks > 1 else "this machine"), lines, n_left=3)

    def line(mark: str, check: str, cells: Sequence[str]) -> str:
        columns = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{mark:1}  {check:<{wide}}  {'  '.join(columns)}"

    body = [
        f"{row.mark:1}  {row.check:<{wide}}  {_whole(row)}" if _whole(row) else line(row.mark, row.check, row.cells)
        for row in rows
    ]
    return "\n".join([line("", "check", names), line("-", "-" * wide, ["-" * n for n in widths]), *body]) + "\n"


def _whole(row: Row) -> str:
    """What stands for all ranks; "": they differ."""
    return row.summary or (row.cells[0] if len(set(row.cells)) == 1 else "")


def _values(cells: Sequence[str]) -> str:
    """The values with their ranks, the most frequent first."""
    by_value = unlike(cells)
    if len(by_value) == 1:
        return cells[0]
    parts = [f"{value or 'none'} (rank{'s' * (len(ranks) > 1)} {in_words(ranks)})" for value, ranks in by_value.items()]
    return "; ".join(parts[:MOST_VALUES]) + (f"; {len(parts) - MOST_VALUES} more" if len(parts) > MOST_VALUES else "")


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Of all rows, those first that must be mended."""
    return sorted((finding for row in rows for finding in row.findings), key=lambda finding: not finding.must)


def line_of(finding: Finding) -> str:
    """With its mark."""
    return f"{'!' if finding.must else '~'} {finding}"


def conclusion(rows: Sequence[Row]) -> str:
    """What is out of line, a line each, or that nothing is."""
    listed = findings(rows)
    lines = [line_of(finding) for finding in listed]
    n_must = sum(finding.must for finding in listed)
    if not listed:
        return "All in line.\n"
    head = f"{n_must} to be mended, " if n_must else "Nothing that must be mended, "
    return "\n".join([f"{head}{len(listed) - n_must} worth a look:", *lines]) + "\n"


def exit_code(rows: Sequence[Row]) -> int:
    """0, or that of the first that must be mended: 3 data, 7 disk, 2 anything else."""
    return next((finding.kind.exit_code for finding in findings(rows) if finding.must), 0)
