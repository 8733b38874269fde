"""The report as one HTML page that needs nothing else: its looks, its little script and its downloads are in it.

A Content-Security-Policy in the page forbids everything from outside, and every script but its own (by digest). Every
text goes through `escape`; every id is made of a block's name.
"""

import base64
import hashlib
from html import escape
from importlib.resources import files
from urllib.parse import quote

from coca_train.report.blocks import Block, Document, HeatMap, HeatMaps, Lines, Row, Table, Text, Value
from coca_train.report.render.chart import NARROW, WIDE, chart, swatch
from coca_train.report.render.contents import (
    PAPER,
    data_table,
    figures,
    footnotes,
    legend,
    paragraphs,
    pieces,
)
from coca_train.report.render.plain import csv_text, latex_text
from coca_train.report.render.scales import RAMP, ground, hex_of, ink_on

TAG = f'<span class="tag">{PAPER}</span>'


def html_text(document: Document) -> str:
    style, script = (
        files("coca_train.report.render").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    # A browser runs the one script with this digest and no other, whatever words a table may carry.
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    title = escape(document.title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<button type="button" id="theme">Dark theme</button>
<h1>{title}</h1>
{_summary(document)}
{_contents(document)}
</header>
<main id="main" tabindex="-1">
{_sections(document)}
{_run(document)}
</main>
<script>{script}</script>
</body>
</html>
"""


def _summary(document: Document) -> str:
    sentences = "".join(f"<li>{inline(sentence)}</li>" for sentence in document.summary)
    return f'<ul class="summary" aria-label="At a glance">{sentences}</ul>' if sentences else ""


def _contents(document: Document) -> str:
    titles = [*(section.title for section in document.sections), "What was run"]
    links = "".join(f'<li><a href="#section-{i}">{escape(title)}</a></li>' for i, title in enumerate(titles, 1))
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _sections(document: Document) -> str:
    return "\n".join(
        f'<section aria-labelledby="section-{index}"><h2 id="section-{index}">{escape(section.title)}</h2>\n'
        f"{''.join(block_html(block) for block in section.blocks)}</section>"
        for index, section in enumerate(document.sections, 1)
    )


def _run(document: Document) -> str:
    """What was run and how to run it again."""
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in document.facts)
    name = f"section-{len(document.sections) + 1}"
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">What was run</h2><dl>{facts}</dl>'
        f'<h3>Run it again</h3><div class="command"><pre>'
        f'<code id="command">{escape(document.command)}</code></pre>'
        f'<button type="button" id="copy">Copy</button></div>'
        f'<p role="status" id="copied" class="quiet"></p></section>'
    )


def block_html(block: Block) -> str:
    if isinstance(block, Text):
        return f'<div class="prose">{prose(block.text)}</div>'
    inner = _table_block(block) if isinstance(block, Table) else _picture(block)
    return (
        f'<div class="block" id="block-{block.name}" role="group" aria-labelledby="title-{block.name}">'
        f'<h3 id="title-{block.name}">{escape(block.title)}</h3>{inner}</div>'
    )


def prose(text: str) -> str:
    return "".join(
        f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in items)}</ul>" if is_list else f"<p>{inline(items[0])}</p>"
        for is_list, items in paragraphs(text)
    )


def inline(text: str) -> str:
    return "".join(f"<code>{escape(words)}</code>" if code else escape(words) for code, words in pieces(text))


def _table_block(table: Table) -> str:
    latex = _download(f"{table.name}.tex", "LaTeX", latex_text(table))
    return f"{_grid(table)}{_below(table)}<p class=tools>{_notes_button(table)}{_csv(table)}{latex}</p>"


def _csv(table: Table) -> str:
    return _download(f"{table.name}.csv", "CSV", csv_text(table))


def _download(name: str, words: str, text: str) -> str:
    """A file that the page itself carries."""
    return f'<a download="{name}" href="data:text/plain;charset=utf-8,{quote(text)}">{words}</a>'


def _notes_button(table: Table) -> str:
    if not any(v.note and v.number is not None for row in table.rows for v in row.values):
        return ""
    return '<button type="button" class="notes" aria-pressed="false">Show intervals and notes</button>'


def _grid(table: Table, caption: str = "") -> str:
    rows = [
        f"<tr{' class=theirs' if row.theirs else ''}>{''.join(_labels(row) + cells)}</tr>"
        for row, cells in figures(table, _cell)
    ]
    kinds = ["", *[" class=more"] * (len(table.label_columns) - 1), *[" class=figure"] * len(table.columns)]
    names = (*table.label_columns, *table.columns)
    header = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, names, strict=True))
    name = escape(caption or table.title)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{name}"><table class="data">'
        f"<caption>{name}</caption><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _labels(row: Row) -> list[str]:
    """A cell for each label; on narrow screens all of them stand in the first."""
    first, *more = map(escape, row.label)
    rest = f'<span class="rest">{", ".join(more)}</span>' if more else ""
    tag = f" {TAG}" if row.theirs else ""
    return [
        f'<th scope="row">{first}{tag}{rest}</th>',
        *(f'<th scope="row" class="more">{label}</th>' for label in more),
    ]


def _cell(value: Value, best: bool, mark: str) -> str:
    text = f"<strong>{escape(value.text)}</strong>" if best else escape(value.text)
    hover = f' title="{escape(value.note)}"' if value.note else ""
    if value.number is None:
        return f"<td{hover}>{text}{f'<sup>{mark}</sup>' if mark else ''}</td>"
    note = f'<small class="note">{escape(value.note)}</small>' if value.note else ""
    return f'<td data-number="{value.number!r}"{hover}>{text}{note}</td>'


def _below(table: Table) -> str:
    """Definition, what bold and the mark mean, and why figures are missing."""
    parts = [f"<p>{inline(words)}</p>" for words in (table.note, legend(table)) if words]
    notes = "".join(f"<li><sup>{mark}</sup> {escape(note)}</li>" for mark, note in footnotes(table))
    parts += [f"<ul class=footnotes>{notes}</ul>"] if notes else []
    return f"<div class=below>{''.join(parts)}</div>" if parts else ""


def _picture(block: Lines | HeatMaps) -> str:
    note = f"<div class=below><p>{inline(block.note)}</p></div>" if block.note else ""
    table = data_table(block)
    if isinstance(block, HeatMaps):  # its squares are a table already
        return f"<p class=below>{escape(block.alt)}</p>{_panels(block)}{note}<p class=tools>{_csv(table)}</p>"
    grid = _grid(table, f"Figures of: {block.title}")
    figures = f"<details><summary>The figures as a table</summary>{grid}{_below(table)}{_notes_button(table)}</details>"
    picture = f"<figure>{chart(block, WIDE)}{chart(block, NARROW)}{_legend(block)}</figure>"
    return f"{picture}{note}{figures}<p class=tools>{_csv(table)}</p>"


def _legend(block: Lines) -> str:
    """A button for each curve, which hides and shows it."""
    entries = [
        f'<li><button type="button" aria-pressed="true" data-line="{index}">{swatch(index, line.theirs)}'
        f"<span>{escape(line.label)}{f' {TAG}' if line.theirs else ''}</span></button></li>"
        for index, line in enumerate(block.lines)
    ]
    listed = f'<ul class="legend" aria-label="Curves; press to hide or show">{"".join(entries)}</ul>'
    return f"<figcaption>{listed}</figcaption>"


def _panels(block: HeatMaps) -> str:
    stops = ", ".join(hex_of(colour) for colour in RAMP)
    key = (
        f'<p class="key"><span>{escape(block.form.format(block.low))}</span> <span class="bar" style="background:'
        f'linear-gradient(90deg, {stops})"></span> <span>{escape(block.form.format(block.high))}</span></p>'
    )
    panels = "".join(_panel(block, panel) for panel in block.panels)
    edge = any(panel.mark_after_x is not None for panel in block.panels)
    words = '<span class="edge-key"></span> end of the training window' if edge else ""
    return f'<div class="panels">{panels}</div><div class="keys">{key}<p>{words}</p></div>'


def _panel(block: HeatMaps, panel: HeatMap) -> str:
    def edge(column: int) -> str:
        return ' class="edge"' if column + 1 == panel.mark_after_x else ""

    rows = []
    for name, values in zip(panel.y_names, panel.values, strict=True):
        squares = "".join(_square(block, value, edge(column)) for column, value in enumerate(values))
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{squares}</tr>')
    names = "".join(f'<th scope="col"{edge(column)}>{escape(name)}</th>' for column, name in enumerate(panel.x_names))
    title = escape(panel.title)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{title}"><table class="heat">'
        f'<caption>{title}</caption><thead><tr><td></td><th scope="colgroup" colspan="{len(panel.x_names)}" '
        f'class="axis">{escape(block.x_label)}</th></tr><tr><th scope="col" class="axis">{escape(block.y_label)}</th>'
        f"{names}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _square(block: HeatMaps, value: float | None, edge: str) -> str:
    if value is None:
        return f'<td{edge} title="nothing measured"><span class="none">–</span></td>'
    colour = ground(value, block.low, block.high)
    look = f' style="background:{hex_of(colour)};color:{hex_of(ink_on(colour))}"' if colour else ""
    return f"<td{edge}{look}>{escape(block.form.format(value))}</td>"
