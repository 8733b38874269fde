"""LaTeX of a table, for a document with \\usepackage{booktabs}: best in bold, the paper's rows marked with a dagger."""

import unicodedata

from coca_train.report.blocks import Table, Value
from coca_train.report.render.contents import best_places, legend, letter, pieces, reasons

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


def escaped(text: str) -> str:
    """Plain words as LaTeX that prints them; Greek letters as mathematics."""
    return "".join(SPECIAL.get(sign) or _greek(sign) for sign in text)


def _greek(sign: str) -> str:
    name = unicodedata.name(sign, "")
    if not name.startswith("GREEK SMALL LETTER ") or " WITH " in name:
        return sign
    word = name.removeprefix("GREEK SMALL LETTER ")
    return f"$\\{GREEK.get(word, word.lower())}$"


def latex_text(table: Table) -> str:
    """A table environment with the label tab:<name>."""
    best, notes = best_places(table), reasons(table)
    lines = []
    for index, row in enumerate(table.rows):
        if index and row.theirs != table.rows[index - 1].theirs:
            lines.append(r"\midrule")
        labels = [escaped(label) for label in row.label]
        labels[0] += DAGGER if row.theirs else ""
        figures = [_figure(value, (index, column) in best, notes) for column, value in enumerate(row.values)]
        lines.append(" & ".join([*labels, *figures]) + r" \\")
    header = " & ".join(escaped(name) for name in (*table.label_columns, *table.columns)) + r" \\"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escaped(table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.label_columns)}{'r' * len(table.columns)}}}",
            *(r"\toprule", header, r"\midrule", *lines, r"\bottomrule"),
            r"\end{tabular}",
            *_below(table, notes),
            r"\end{table}",
            "",
        ]
    )


def _figure(value: Value, best: bool, notes: list[str]) -> str:
    text = escaped(value.text)
    if value.number is None and value.note:
        return f"{text}\\rlap{{$^{{\\mathrm{{{letter(notes.index(value.note))}}}}}$}}"
    return rf"\textbf{{{text}}}" if best else text


def _prose(text: str) -> str:
    return "".join(rf"\texttt{{{escaped(words)}}}" if code else escaped(words) for code, words in pieces(text))


def _below(table: Table, notes: list[str]) -> list[str]:
    """Note, meaning of the marks, and the footnotes, in small print."""
    words = [_prose(table.note), escaped(legend(table).replace("rows marked “paper”", "rows with a dagger"))]
    words += [f"$^{{\\mathrm{{{letter(index)}}}}}$~{escaped(note)}." for index, note in enumerate(notes)]
    small_print = " ".join(word for word in words if word)
    return [rf"\par\smallskip{{\footnotesize {small_print}\par}}"] if small_print else []
