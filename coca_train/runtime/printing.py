"""Tables for a terminal and for Markdown files, and numbers people can read."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

WIDTH = 120  # columns a table for a terminal should fit into

LONGEST_LINE = 2000  # characters of a message; a path has at most a few hundred

Rows = Sequence[Sequence[str]]


def plain(header: Sequence[str], rows: Rows, n_left: int = 1) -> str:
    """Lay out a table for a terminal: columns two spaces apart, a rule below the header; the first n_left columns are
    aligned left, others right."""
    widths = _widths(header, rows)
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(_padded(line, widths, n_left)).rstrip() for line in lines) + "\n"


def markdown(header: Sequence[str], rows: Rows, n_left: int = 1) -> str:
    """Lay out a padded Markdown table; a `|` inside a cell is escaped."""
    header, *rows = [[cell.replace("|", "\\|") for cell in line] for line in [header, *rows]]
    widths = [max(3, width) for width in _widths(header, rows)]
    rule = ["-" * w if i < n_left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "".join(f"| {' | '.join(_padded(line, widths, n_left))} |\n" for line in [header, rule, *rows])


def _widths(header: Sequence[str], rows: Rows) -> list[int]:
    return [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]


def _padded(cells: Sequence[str], widths: Sequence[int], n_left: int) -> list[str]:
    pairs = enumerate(zip(cells, widths, strict=True))
    return [cell.ljust(width) if i < n_left else cell.rjust(width) for i, (cell, width) in pairs]


def escaped(text: str) -> str:
    """Escape text for a terminal: what could move its cursor, change its colours or is no UTF-8 becomes \\x1b; lines
    stay lines."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def printed(text: str) -> str:
    """Return text for standard output: `escaped` where that is a terminal, unchanged where it is a file."""
    return escaped(text) if sys.stdout.isatty() else text


@contextmanager
def off_bars() -> Iterator[None]:
    """Clear progress bars from stderr while the block prints there, and draw them again below it."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # what has not imported it has no bars
    if bars is None or not sys.stderr.isatty():
        yield
        return
    with bars.external_write_mode(file=sys.stderr):
        yield


def bounded(line: str) -> str:
    """Shorten the middle of a line that is longer than anybody reads: the fix is at its end."""
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE // 2]} […] {line[-LONGEST_LINE // 2 :]}"


def short(number: float) -> str:
    """Return a number below 10,000 as it is, a larger one as three digits and a unit: 9,999, 12.3k, 4.56M, 50.0B."""
    if number < 9999.5:
        return f"{number:,.0f}"
    for size, unit in ((1e3, "k"), (1e6, "M"), (1e9, "B")):
        if number < 999.5 * size:  # 999.5 would be rounded to four digits
            return f"{number / size:#.3g}".rstrip(".") + unit
    return f"{number / 1e12:,.2f}T"


def percent(share: float) -> str:
    """Format a share of one in per cent, so that a small share never looks like none, nor a large one like all."""
    if 0 < share < 0.0001:
        return "<0.01 %"
    if 0.9999 < share < 1:
        return ">99.99 %"
    return f"{share:.2%}".replace("%", " %")


def n_bytes(number: int) -> str:
    """Return the bytes in decimal units: 12 B, 3.4 kB, 5.6 GB."""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
