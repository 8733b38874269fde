"""The report as one Markdown file: tables in full, figures as links to the pictures beside it."""

import re

from coca_train.report.blocks import Document, HeatMaps, Lines, Table, Text, Value
from coca_train.report.render.contents import (
    PAPER,
    best_places,
    is_list,
    items,
    legend,
    letter,
    paragraphs,
    pieces,
    reasons,
)
from coca_train.runtime.printing import markdown


def escaped(text: str) -> str:
    """Plain words as Markdown that shows them."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]~$])", r"\\\1", " ".join(text.split()))


def markdown_text(document: Document) -> str:
    lines = [f"# {escaped(document.title)}", "\n".join(f"* {_inline(sentence)}" for sentence in document.summary)]
    for section in document.sections:
        lines.append(f"## {escaped(section.title)}")
        lines += [_block(block) for block in section.blocks]
    lines += ["## What was run", "\n".join(f"* {escaped(label)}: {escaped(value)}" for label, value in document.facts)]
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", document.command)), default=0))
    lines += ["To run it again:", f"{fence}\n{document.command}\n{fence}"]
    return "\n\n".join(line for line in lines if line) + "\n"


def _block(block: Text | Table | Lines | HeatMaps) -> str:
    if isinstance(block, Text):
        return _text(block.text)
    if isinstance(block, Table):
        return _table(block)
    files = f"[SVG](figures/{block.name}.svg), [numbers](tables/{block.name}.csv)"
    picture = f"![{escaped(block.alt)}](figures/{block.name}.png)"
    return "\n\n".join([f"### {escaped(block.title)}", picture, f"{_inline(block.note)} {files}".strip()])


def _text(text: str) -> str:
    parts = []
    for lines in paragraphs(text):
        if is_list(lines):
            parts.append("\n".join(f"* {_inline(item)}" for item in items(lines)))
        else:
            parts.append(_inline(" ".join(lines)))
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    return "".join(f"`{words}`" if code else _kept(words) for code, words in pieces(text))


def _kept(words: str) -> str:
    """Escaped, with the spaces at both ends that `escaped` drops: code may stand beside them."""
    return words[: len(words) - len(words.lstrip())] + escaped(words) + words[len(words.rstrip()) :]


def _table(table: Table) -> str:
    best, notes = best_places(table), reasons(table)
    rows = []
    for index, row in enumerate(table.rows):
        labels = [escaped(label) for label in row.label]
        labels[0] += f" *({PAPER})*" if row.theirs else ""
        rows.append(labels + [_figure(v, (index, column) in best, notes) for column, v in enumerate(row.values)])
    header = [escaped(name) for name in (*table.label_columns, *table.columns)]
    files = f"[CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex)"
    footnotes = [f"<sup>{letter(index)}</sup> {escaped(note)}." for index, note in enumerate(notes)]
    words = [_inline(table.note), escaped(legend(table)), *footnotes, files]
    body = markdown(header, rows, n_left=len(table.label_columns)).rstrip("\n")
    return "\n\n".join([f"### {escaped(table.title)}", body, " ".join(word for word in words if word)])


def _figure(value: Value, best: bool, notes: list[str]) -> str:
    text = escaped(value.text)
    if value.number is None and value.note:
        return f"{text}<sup>{letter(notes.index(value.note))}</sup>"
    return f"**{text}**" if best else text
