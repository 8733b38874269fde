"""A report's blocks as HTML: prose, tables, curves and heat maps. The papers' rows, and every curve's own interval
where there are many, are folded.

Every text goes through `escape`; every id is made of a block's name.
"""

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from coca_train.report.blocks import (
    ANSWERED,
    ANSWERS,
    Block,
    HeatMap,
    HeatMaps,
    Line,
    Lines,
    Panels,
    Picture,
    Row,
    Table,
    Text,
    Value,
)
from coca_train.report.render.chart import NARROW, NARROW_PART, PART, WIDE, chart, multiples, part, swatch
from coca_train.report.render.contents import (
    PAPER,
    axes_in_words,
    data_table,
    figures,
    footnotes,
    legend,
    paragraphs,
    picture_note,
    pieces,
)
from coca_train.report.render.plain import csv_text, latex_text
from coca_train.report.render.scales import DARK_RAMP, RAMP, Rgb, apart, ground, hex_of, ink_on

TAG = f'<span class="tag">{PAPER}</span>'


def block_html(block: Block, level: int = 3) -> str:
    """level: of its heading; at 2 it stands on the first screen, and what goes with a picture is folded."""
    if isinstance(block, Text):
        return f'<div class="prose">{prose(block.text)}</div>'
    inner = _table_block(block) if isinstance(block, Table) else _picture(block, folded=level == 2)
    return (
        f'<div class="block" id="block-{block.name}" role="group" aria-labelledby="title-{block.name}">'
        f'<h{level} class="title" id="title-{block.name}">{escape(block.title)}</h{level}>{inner}</div>'
    )


def views(pictures: Sequence[Picture]) -> str:
    """On the first screen: a picture, or two views of one to choose from."""
    if len(pictures) < 2:
        return "".join(block_html(block, 2) for block in pictures)
    group = f"view-{pictures[0].name}"
    choices = "".join(
        f'<input type="radio" name="{group}" id="{group}-{i}"{"" if i else " checked"}>'
        f'<label for="{group}-{i}">{escape(block.view if isinstance(block, Lines) else block.title)}</label>'
        for i, block in enumerate(pictures)
    )
    return f'<div class="views">{choices}{"".join(block_html(block, 2) for block in pictures)}</div>'


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
    if table.name == ANSWERED or not any(v.note and v.number is not None for row in table.rows for v in row.values):
        return ""
    return '<button type="button" class="notes" aria-pressed="false">Show notes</button>'


def _grid(table: Table, caption: str = "") -> str:
    """Our rows; the papers' in a table of the same columns that is folded."""
    ours: list[str] = []
    theirs: list[str] = []
    for row, cells in figures(table, _cell):
        (theirs if row.theirs else ours).append(
            f"<tr{' class=theirs' if row.theirs else ''}>{''.join(_labels(row) + cells)}</tr>"
        )
    name = caption or table.title
    shown = _rows(table, ours, name) if ours or not theirs else ""
    if not theirs:
        return shown
    title = f"The paper's figures ({len(theirs)} row{'s' if len(theirs) > 1 else ''})"
    folded = _rows(table, theirs, f"{name}: the paper's figures")
    return f"{shown}<details><summary>{title}</summary>{folded}</details>"


def _rows(table: Table, rows: Sequence[str], caption: str) -> str:
    kinds = ["", *[" class=more"] * (len(table.label_columns) - 1), *[" class=figure"] * len(table.columns)]
    names = (*table.label_columns, *table.columns)
    header = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, names, strict=True))
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table class="data">'
        f"<caption>{escape(caption)}</caption><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "</div>"
    )


def _labels(row: Row) -> list[str]:
    """A cell for each label; on narrow screens all of them stand in the first."""
    first, *more = map(escape, row.shown)
    rest = f'<span class="rest">{", ".join(more)}</span>' if more else ""
    tag = f" {TAG}" if row.theirs else ""
    return [
        f'<th scope="row">{first}{tag}{rest}</th>',
        *(f'<th scope="row" class="more">{label}</th>' for label in more),
    ]


def _cell(value: Value, best: bool, mark: str) -> str:
    text = f"<strong>{escape(value.text)}</strong>" if best else escape(value.text)
    hover = f' title="{escape(value.note)}"' if value.note else ""
    answer = next((word for word, sign in ANSWERS.items() if sign == value.text), "")
    hover += f' class="{answer}"' if answer else ""
    if value.number is None:
        return f"<td{hover}>{text}{f'<sup>{mark}</sup>' if mark else ''}</td>"
    between = f"<small>{escape(value.range)}</small>" if value.range else ""
    between += f"<small>{escape(value.spread.words)}</small>" if value.spread else ""
    note = f'<small class="note">{escape(value.note)}</small>' if value.note else ""
    return f'<td data-number="{value.number!r}"{hover}>{text}{between}{note}</td>'


def _below(table: Table) -> str:
    """Definition, what bold and the mark mean, and why figures are missing."""
    parts = [f"<p>{inline(words)}</p>" for words in (table.note, legend(table)) if words]
    notes = "".join(f"<li><sup>{mark}</sup> {escape(note)}</li>" for mark, note in footnotes(table))
    parts += [f"<ul class=footnotes>{notes}</ul>"] if notes else []
    return f"<div class=below>{''.join(parts)}</div>" if parts else ""


def _picture(block: Picture, folded: bool) -> str:
    """folded: what goes with it is there on a click."""
    words = picture_note(block)
    below = f"<div class=below><p>{inline(words)}</p></div>" if words else ""
    table = data_table(block)
    if isinstance(block, HeatMaps):  # its squares are a table already
        return f"<p class=below>{escape(block.alt)}</p>{_panels(block)}{below}<p class=tools>{_csv(table)}</p>"
    grid = _grid(table, f"Figures of: {block.title}")
    figures = f"<details><summary>The figures as a table</summary>{grid}{_below(table)}{_notes_button(table)}</details>"
    if isinstance(block, Panels):
        picture, each = _side_by_side(block), f'<p class="quiet">{escape(axes_in_words(block))}</p>'
    else:
        drawn = f"<div>{chart(block, WIDE)}{chart(block, NARROW)}</div>"
        picture, each = f"<figure>{drawn}{_legend(block.lines, apart(block), block.interval)}</figure>", _each(block)
    more = f"{each}{below}{figures}<p class=tools>{_csv(table)}</p>"
    if folded:
        more = f"<details><summary>More about this picture</summary>{more}</details>"
    return picture + more


def _each(block: Lines) -> str:
    """Small multiples of curves whose intervals would hide one another."""
    if not apart(block):
        return ""
    panels = "".join(
        f"<li><p>{look}<span>{escape(line.label)}{f' {TAG}' if line.theirs else ''}</span></p>{panel}</li>"
        for line, (look, panel) in zip(block.lines, multiples(block), strict=True)
    )
    return (
        f'<details class="each"><summary>Each curve with its {escape(block.interval)}</summary><ul>{panels}</ul>'
        f'<p class="quiet">{escape(block.y_label)} against {escape(block.x_label)}; grey: the other curves.</p>'
        "</details>"
    )


def _side_by_side(block: Panels) -> str:
    """The panels, each below its name and what it shows; one legend, where there is more than one curve."""
    panels = "".join(
        f"<li><p><b>{escape(panel.title)}</b> <span>{escape(panel.y_label)}</span></p>"
        f"{part(block.name, panel, PART)}{part(block.name, panel, NARROW_PART)}</li>"
        for panel in block.panels
    )
    first = block.panels[0]
    legend = _legend(first.lines, any(map(apart, block.panels)), first.interval) if len(first.lines) > 1 else ""
    return f'<figure class="parted"><ul>{panels}</ul>{legend}</figure>'


def _legend(lines: Sequence[Line], hushed: bool, interval: str) -> str:
    """A button for each curve, which hides and shows it. hushed: their intervals are there when pointed at."""
    entries = [
        f'<li><button type="button" aria-pressed="true" data-line="{index}">{swatch(line.place(index), line.theirs)}'
        f"<span>{escape(line.label)}{f' {TAG}' if line.theirs else ''}</span></button></li>"
        for index, line in enumerate(lines)
    ]
    listed = f'<ul class="legend" aria-label="Curves; press to hide or show">{"".join(entries)}</ul>'
    point = f'<p class="quiet">Point at a curve to see its {escape(interval)}.</p>' if hushed else ""
    return f"<figcaption>{listed}{point}</figcaption>"


def _both(light: Rgb, dark: Rgb) -> str:
    """A colour of light pages and one of dark ones."""
    return f"light-dark({hex_of(light)}, {hex_of(dark)})"


def _panels(block: HeatMaps) -> str:
    stops = ", ".join(_both(*colours) for colours in zip(RAMP, DARK_RAMP, strict=True))
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
    light, dark = (ground(value, block.low, block.high, stops) for stops in (RAMP, DARK_RAMP))
    inks = light and dark and _both(ink_on(light), ink_on(dark))
    look = f' style="background:{_both(light, dark)};color:{inks}"' if light and dark else ""
    return f"<td{edge}{look}>{escape(block.form.format(value))}</td>"
