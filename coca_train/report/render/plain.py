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
from dataclasses import replace

from coca_train.report.blocks import MISSING, Block, Document, Lines, Table, Text, Value, Verdict
from coca_train.report.render.contents import (
    PAPER,
    SIGNS,
    Cell,
    data_table,
    explain_marks,
    footnotes,
    has_intervals,
    paragraphs,
    picture_note,
    split_code,
    table_cells,
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


def markdown_text(document: Document, alone: bool = False) -> str:
    """Return a report as Markdown: verdicts first, tables in full, figures as links to the files next to it. alone:
    there are no such files; figures are tables."""
    lines = [
        f"# {plain(document.finding[0] if document.finding else document.title)}",
        plain(document.title) if document.finding else "",
        plain(" ".join(document.finding[1:])),
        "\n".join(f"* {_verdict(verdict)}" for verdict in document.verdicts),
        "\n".join(f"* {_inline(sentence)}" for sentence in document.summary),
    ]
    for section in document.sections:
        lines += [f"## {plain(section.title)}", *(_block(each, alone) for each in section.blocks)]
    lines += ["## What was run", "\n".join(f"* {plain(label)}: {plain(value)}" for label, value in document.facts)]
    # Longer than any run of backticks in the command, which would end the block otherwise.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", document.command)), default=0))
    lines += ["To run it again:", f"{fence}\n{document.command}\n{fence}"]
    return "\n\n".join(line for line in lines if line) + "\n"


def _verdict(verdict: Verdict) -> str:
    return f"{SIGNS[verdict.state][0]} **{plain(verdict.label)}** {plain(verdict.short)}"


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """Return a line for each verdict, aligned, for a terminal; "" without any."""
    width = max((len(each.label) for each in verdicts), default=0)
    return "".join(f"{SIGNS[each.state][0]} {each.label.ljust(width)}  {each.short}\n" for each in verdicts)


def plain(text: str) -> str:
    """Escape plain words for Markdown."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]~$])", r"\\\1", " ".join(text.split()))


def _inline(text: str) -> str:
    return "".join(f"`{words}`" if code else _kept(words) for code, words in split_code(text))


def _kept(words: str) -> str:
    """Escape words, with the spaces at both ends that `plain` drops: code may stand next to them."""
    return words[: len(words) - len(words.lstrip())] + plain(words) + words[len(words.rstrip()) :]


def _block(block: Block, alone: bool) -> str:
    if isinstance(block, Text):
        return "\n\n".join(
            "\n".join(f"* {_inline(item)}" for item in items) if is_list else _inline(items[0])
            for is_list, items in paragraphs(block.text)
        )
    if isinstance(block, Table):
        return _markdown_table(block, alone)
    if alone:
        return _markdown_table(replace(data_table(block), note=picture_note(block)), alone)
    files = f"[SVG](figures/{block.name}.svg), [numbers](tables/{block.name}.csv)"
    picture = f"![{plain(block.alt)}](figures/{block.name}.png)"
    words = [_inline(picture_note(block)), block.not_drawn if isinstance(block, Lines) else "", files]
    return "\n\n".join([f"### {plain(block.title)}", picture, " ".join(filter(None, words))])


def _markdown_table(table: Table, alone: bool) -> str:
    """Return the grid with its notes; the papers' rows are folded below ours."""
    rows: dict[bool, list[list[str]]] = {}
    for row, cells in table_cells(table):
        first, *more = map(plain, row.display_label)
        label = f"{first} *({PAPER})*" if row.theirs else first
        rows.setdefault(row.theirs, []).append([label, *more, *map(_markdown_figure, cells)])
    header = [plain(name) for name in (*table.label_columns, *table.columns)]
    grids = {
        whose: markdown(header, each, n_left=len(table.label_columns)).rstrip("\n") for whose, each in rows.items()
    }
    files = "" if alone else f"[CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)"
    notes = [f"<sup>{letter}</sup> {plain(reason)}." for letter, reason in footnotes(table)]
    words = " ".join(word for word in (_inline(table.note), plain(explain_marks(table)), *notes, files) if word)
    if len(grids) == 2:
        grids[True] = f"<details><summary>The paper's figures</summary>\n\n{grids[True]}\n\n</details>"
    return "\n\n".join([f"### {plain(table.title)}", *(grids[whose] for whose in sorted(grids)), words])


def _markdown_figure(cell: Cell) -> str:
    text = f"**{plain(cell.value.text)}**" if cell.is_best else plain(cell.value.text)
    text += f" ({plain(cell.value.uncertainty)})" if cell.value.uncertainty else ""
    return text + (f"<sup>{cell.footnote}</sup>" if cell.footnote else "")


def terminal_text(table: Table) -> str:
    """Return the title and our rows, aligned; with intervals and spreads where they fit into WIDTH, else with spreads,
    else without both: the report has them."""
    ours = [row for row in table.rows if not row.theirs]
    header = (*table.label_columns, *table.columns)

    def grid(add: Callable[[Value], str]) -> str:
        words = [[f"{v.text} ({add(v)})" if add(v) else v.text for v in row.values] for row in ours]
        rows = [[*row.display_label, *figures] for row, figures in zip(ours, words, strict=True)]
        return markdown(header, rows, n_left=len(table.label_columns))

    def fits(text: str) -> bool:
        return len(text.partition("\n")[0]) <= WIDTH

    whole, seeds = grid(lambda value: value.uncertainty), grid(lambda value: value.spread.words if value.spread else "")
    if fits(whole):
        kind = f" (with its {table.interval})" if has_intervals(table) else ""
        return f"{table.title}{kind}\n\n{whole}"
    return f"{table.title}\n\n{seeds if fits(seeds) else grid(lambda value: '')}"


def csv_text(table: Table) -> str:
    """Return a table as CSV; the module says which columns it has."""
    numbers: dict[str, Callable[[Value], float | None]] = {
        "low": lambda value: value.interval and value.interval[0],
        "high": lambda value: value.interval and value.interval[1],
        "lowest": lambda value: value.spread and value.spread.low,
        "highest": lambda value: value.spread and value.spread.high,
        "deviation": lambda value: value.spread and value.spread.deviation,
    }
    extra: list[tuple[str, list[str]]] = []
    for kinds in (("low", "high"), ("lowest", "highest", "deviation")):
        for column, name in enumerate(table.columns):
            columns = [[numbers[kind](row.values[column]) for row in table.rows] for kind in kinds]
            if any(number is not None for number in columns[0]):
                texts = [["" if number is None else repr(number) for number in each] for each in columns]
                extra += [(f"{kind}: {name}", each) for kind, each in zip(kinds, texts, strict=True)]
    for column, name in enumerate(table.columns):
        if any(notes := [row.values[column].note for row in table.rows]):
            extra.append((f"note: {name}", notes))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*table.label_columns, *table.columns, "whose", *(name for name, _ in extra)])
    for index, row in enumerate(table.rows):
        whose, more = PAPER if row.theirs else "ours", (texts[index] for _, texts in extra)
        writer.writerow([*row.label, *map(_csv_figure, row.values), whose, *more])
    return buffer.getvalue()


def _csv_figure(value: Value) -> str:
    """In full; words where the figure is words; nothing where it is missing."""
    if value.number is not None:
        return repr(value.number)
    return "" if value.text == MISSING.text else value.text


def latex_text(table: Table) -> str:
    """Return a table environment labelled tab:<name>: best in bold, the paper's rows marked with a dagger."""
    lines, above = [], None
    for row, cells in table_cells(table):
        if above not in (None, row.theirs):  # a rule between our rows and the paper's
            lines.append(r"\midrule")
        first, *more = map(tex, row.display_label)
        lines.append(" & ".join([first + (DAGGER if row.theirs else ""), *more, *map(_latex_figure, cells)]) + r" \\")
        above = row.theirs
    header = " & ".join(tex(name) for name in (*table.label_columns, *table.columns)) + r" \\"
    note = "".join(rf"\texttt{{{tex(words)}}}" if code else tex(words) for code, words in split_code(table.note))
    words = [note, tex(explain_marks(table).replace("rows marked “paper”", "rows with a dagger"))]
    words += [f"$^{{\\mathrm{{{letter}}}}}$~{tex(reason)}." for letter, reason in footnotes(table)]
    small_print = " ".join(filter(None, words))
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
            *([rf"\par\smallskip{{\footnotesize {small_print}\par}}"] if small_print else []),
            r"\end{table}",
            "",
        ]
    )


def _latex_figure(cell: Cell) -> str:
    text = rf"\textbf{{{tex(cell.value.text)}}}" if cell.is_best else tex(cell.value.text)
    text += rf"~{{\scriptsize({tex(cell.value.uncertainty)})}}" if cell.value.uncertainty else ""
    return text + (f"\\rlap{{$^{{\\mathrm{{{cell.footnote}}}}}$}}" if cell.footnote else "")


def tex(text: str) -> str:
    """Escape plain words for LaTeX; Greek letters become mathematics."""
    return "".join(SPECIAL.get(sign) or _greek(sign) for sign in text)


def _greek(sign: str) -> str:
    name = unicodedata.name(sign, "")
    if not name.startswith("GREEK SMALL LETTER ") or " WITH " in name:
        return sign
    word = name.removeprefix("GREEK SMALL LETTER ")
    return f"$\\{GREEK.get(word, word.lower())}$"
