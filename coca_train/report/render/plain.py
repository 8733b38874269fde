"""A report in plain text: one Markdown file, its tables as CSV, as LaTeX and for a terminal, and its verdicts there.

CSV: one row a row, numbers in full, and whose they are. Columns: the labels, the figures, `whose` (ours or paper),
then, where they are known, `low: <column>` and `high: <column>`; `lowest: <column>`, `highest: <column>` and
`deviation: <column>` of the single figures that one is the mean of; and `note: <column>` (why there is no figure). A
number is written so that reading it gives the same float; inf and nan as such. LaTeX is for a document with
\\usepackage{booktabs}.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence

from coca_train.report.blocks import MISSING, Block, Document, Table, Text, Value, Verdict
from coca_train.report.render.contents import (
    PAPER,
    SIGNS,
    figures,
    footnotes,
    has_intervals,
    legend,
    paragraphs,
    picture_note,
    pieces,
)
from coca_train.runtime.printing import WIDTH, markdown

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: "\\" + sign for sign in "&%$#_"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "√": r"$\surd$",
    "\N{NO-BREAK SPACE}": "~",
}
DAGGER = r"\rlap{$^\dagger$}"
GREEK = {"LAMDA": "lambda", "FINAL SIGMA": "varsigma"}  # Unicode's name: TeX's


def markdown_text(document: Document) -> str:
    """Verdicts first, tables in full, figures as links to the pictures beside it."""
    lines = [
        f"# {plain(document.finding[0] if document.finding else document.title)}",
        plain(document.title) if document.finding else "",
        plain(" ".join(document.finding[1:])),
        "\n".join(f"* {_verdict(verdict)}" for verdict in document.verdicts),
        "\n".join(f"* {_inline(sentence)}" for sentence in document.summary),
    ]
    for section in document.sections:
        lines += [f"## {plain(section.title)}", *map(_block, section.blocks)]
    lines += ["## What was run", "\n".join(f"* {plain(label)}: {plain(value)}" for label, value in document.facts)]
    # Longer than any run of backticks in the command, which would end the block otherwise.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", document.command)), default=0))
    lines += ["To run it again:", f"{fence}\n{document.command}\n{fence}"]
    return "\n\n".join(line for line in lines if line) + "\n"


def _verdict(verdict: Verdict) -> str:
    return f"{SIGNS[verdict.state][0]} **{plain(verdict.label)}** {plain(verdict.short)}"


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """For a terminal: a line each, aligned; "" without any."""
    width = max((len(each.label) for each in verdicts), default=0)
    return "".join(f"{SIGNS[each.state][0]} {each.label.ljust(width)}  {each.short}\n" for each in verdicts)


def plain(text: str) -> str:
    """Plain words as Markdown that shows them."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]~$])", r"\\\1", " ".join(text.split()))


def _inline(text: str) -> str:
    return "".join(f"`{words}`" if code else _kept(words) for code, words in pieces(text))


def _kept(words: str) -> str:
    """Escaped, with the spaces at both ends that `plain` drops: code may stand beside them."""
    return words[: len(words) - len(words.lstrip())] + plain(words) + words[len(words.rstrip()) :]


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return "\n\n".join(
            "\n".join(f"* {_inline(item)}" for item in items) if is_list else _inline(items[0])
            for is_list, items in paragraphs(block.text)
        )
    if isinstance(block, Table):
        return _markdown_table(block)
    files = f"[SVG](figures/{block.name}.svg), [numbers](tables/{block.name}.csv)"
    picture = f"![{plain(block.alt)}](figures/{block.name}.png)"
    return "\n\n".join([f"### {plain(block.title)}", picture, f"{_inline(picture_note(block))} {files}".strip()])


def _markdown_table(table: Table) -> str:
    """The papers' rows are folded where ours stand above them."""

    def figure(value: Value, best: bool, mark: str) -> str:
        text = f"**{plain(value.text)}**" if best else plain(value.text)
        return text + (f" ({plain(value.beside)})" if value.beside else "") + (f"<sup>{mark}</sup>" if mark else "")

    rows: dict[bool, list[list[str]]] = {}
    for row, cells in figures(table, figure):
        first, *more = map(plain, row.shown)
        rows.setdefault(row.theirs, []).append([f"{first} *({PAPER})*" if row.theirs else first, *more, *cells])
    header = [plain(name) for name in (*table.label_columns, *table.columns)]
    grids = {
        whose: markdown(header, each, n_left=len(table.label_columns)).rstrip("\n") for whose, each in rows.items()
    }
    files = f"[CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)"
    notes = [f"<sup>{mark}</sup> {plain(note)}." for mark, note in footnotes(table)]
    words = " ".join(word for word in (_inline(table.note), plain(legend(table)), *notes, files) if word)
    parts = [f"### {plain(table.title)}", *grids.values(), words]
    if len(grids) == 2:
        folded = f"<details><summary>The paper's figures</summary>\n\n{grids[True]}\n\n</details>"
        parts = [parts[0], grids[False], folded, words]
    return "\n\n".join(parts)


def terminal_text(table: Table) -> str:
    """Its title and our rows, aligned; with intervals and spreads where lines of WIDTH have room for them, else with
    spreads, else they are in the report."""
    ours = [row for row in table.rows if not row.theirs]
    header = (*table.label_columns, *table.columns)

    def grid(beside: Callable[[Value], str]) -> str:
        words = [[f"{v.text} ({beside(v)})" if beside(v) else v.text for v in row.values] for row in ours]
        rows = [[*row.shown, *figures] for row, figures in zip(ours, words, strict=True)]
        return markdown(header, rows, n_left=len(table.label_columns))

    def fits(text: str) -> bool:
        return len(text.partition("\n")[0]) <= WIDTH

    whole, seeds = grid(lambda value: value.beside), grid(lambda value: value.spread.words if value.spread else "")
    if fits(whole):
        kind = f" (with its {table.interval})" if has_intervals(table) else ""
        return f"{table.title}{kind}\n\n{whole}"
    return f"{table.title}\n\n{seeds if fits(seeds) else grid(lambda value: '')}"


def csv_text(table: Table) -> str:
    def with_any(which: Callable[[Value], object]) -> list[int]:
        return [i for i in range(len(table.columns)) if any(which(row.values[i]) for row in table.rows)]

    between, noted = with_any(lambda value: value.interval), with_any(lambda value: value.note)
    spread = with_any(lambda value: value.spread)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    ends = [f"{end}: {table.columns[index]}" for index in between for end in ("low", "high")]
    over = [f"{what}: {table.columns[index]}" for index in spread for what in ("lowest", "highest", "deviation")]
    notes = [f"note: {table.columns[index]}" for index in noted]
    writer.writerow([*table.label_columns, *table.columns, "whose", *ends, *over, *notes])
    for row in table.rows:
        ends = [_full(end) for index in between for end in _ends(row.values[index])]
        over = [_full(number) for index in spread for number in _over(row.values[index])]
        notes = [row.values[index].note for index in noted]
        writer.writerow([*row.label, *map(_number, row.values), PAPER if row.theirs else "ours", *ends, *over, *notes])
    return buffer.getvalue()


def _ends(value: Value) -> tuple[float | None, float | None]:
    return value.interval or (None, None)


def _over(value: Value) -> tuple[float | None, ...]:
    spread = value.spread
    return (spread.low, spread.high, spread.deviation) if spread else (None, None, None)


def _full(number: float | None) -> str:
    return "" if number is None else repr(number)


def _number(value: Value) -> str:
    """In full; words where the figure is words; nothing where it is missing."""
    if value.number is not None:
        return repr(value.number)
    return "" if value.text == MISSING.text else value.text


def latex_text(table: Table) -> str:
    """A table environment with the label tab:<name>: best in bold, the paper's rows marked with a dagger."""

    def figure(value: Value, best: bool, mark: str) -> str:
        text = rf"\textbf{{{tex(value.text)}}}" if best else tex(value.text)
        text += rf"~{{\scriptsize({tex(value.beside)})}}" if value.beside else ""
        return text + (f"\\rlap{{$^{{\\mathrm{{{mark}}}}}$}}" if mark else "")

    lines, above = [], None
    for row, cells in figures(table, figure):
        if above not in (None, row.theirs):  # a rule between our rows and the paper's
            lines.append(r"\midrule")
        first, *more = map(tex, row.shown)
        lines.append(" & ".join([first + (DAGGER if row.theirs else ""), *more, *cells]) + r" \\")
        above = row.theirs
    header = " & ".join(tex(name) for name in (*table.label_columns, *table.columns)) + r" \\"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{tex(table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.label_columns)}{'r' * len(table.columns)}}}",
            *(r"\toprule", header, r"\midrule", *lines, r"\bottomrule"),
            r"\end{tabular}",
            *_small_print(table),
            r"\end{table}",
            "",
        ]
    )


def tex(text: str) -> str:
    """Plain words as LaTeX that prints them; Greek letters as mathematics."""
    return "".join(SPECIAL.get(sign) or _greek(sign) for sign in text)


def _greek(sign: str) -> str:
    name = unicodedata.name(sign, "")
    if not name.startswith("GREEK SMALL LETTER ") or " WITH " in name:
        return sign
    word = name.removeprefix("GREEK SMALL LETTER ")
    return f"$\\{GREEK.get(word, word.lower())}$"


def _small_print(table: Table) -> list[str]:
    """Note, meaning of the marks, and the footnotes."""
    note = "".join(rf"\texttt{{{tex(words)}}}" if code else tex(words) for code, words in pieces(table.note))
    words = [note, tex(legend(table).replace("rows marked “paper”", "rows with a dagger"))]
    words += [f"$^{{\\mathrm{{{mark}}}}}$~{tex(note)}." for mark, note in footnotes(table)]
    small_print = " ".join(word for word in words if word)
    return [rf"\par\smallskip{{\footnotesize {small_print}\par}}"] if small_print else []
