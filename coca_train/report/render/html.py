"""The report as one HTML page that needs nothing else: its looks, its little script and its downloads are in it.

It opens with the finding, the answers, one picture and one table; what was run, definitions and the papers' figures
are folded. A Content-Security-Policy in the page forbids everything from outside, and every script but its own (by
digest). Every text goes through `escape`; every id is made of a block's name.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from coca_train.report.blocks import Document, Section, Table, Verdict
from coca_train.report.render.contents import SIGNS, lead
from coca_train.report.render.html_blocks import block_html, inline, views

FIRST_SENTENCES = 3  # of the summary, on the first screen
ON_SMALL, ON_WIDE = 2, 8  # verdicts that are not folded: on a telephone, on a wide screen
FEW_ROWS = 12  # of answers, that are not folded
DENSE = 4  # verdicts in lines of full height


def html_text(document: Document) -> str:
    answers, pictures, table, sections = lead(document)
    # Of models of which nothing can be said the finding has said why.
    verdicts = document.verdicts if not document.finding or any(each.parts for each in document.verdicts) else ()
    first = views(pictures) + (block_html(table, 2) if table else "")
    headline = document.finding[0] if document.finding else document.title
    return framed(
        headline,
        f"""<header>
<button type="button" id="theme"><span aria-hidden="true">◐</span> <span class="sr">Dark theme</span></button>
{f'<p class="kicker">{escape(document.title)}</p>' if document.finding else ""}
<h1>{escape(headline)}</h1>
{_standfirst(document)}
{_answers(answers) or verdict_list(verdicts) or _summary(document)}
<div class="folds">{_run(document)}{"".join(_folded(section) for section in sections if section.folded)}</div>
</header>
<main id="main" tabindex="-1">
{f'<div class="lead">{first}</div>' if first else ""}
{_summary(document) if answers or verdicts else ""}
{_contents(sections)}
{_sections(sections)}
</main>""",
    )


def framed(title: str, body: str) -> str:
    """A whole page of this body, with the looks and the script of a report."""
    style, script = (
        files("coca_train.report.render").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    # A browser runs the one script with this digest and no other, whatever words a table may carry.
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
{body}
<script>{script}</script>
</body>
</html>
"""


def _answers(table: Table | None) -> str:
    """The table of answers; of many rows folded."""
    if table is None:
        return ""
    shown = f'<div class="answers">{block_html(table, 2)}</div>'
    if len(table.rows) <= FEW_ROWS:
        return shown
    return f"<details><summary>{escape(table.title)} ({len(table.rows)} rows)</summary>{shown}</details>"


def _standfirst(document: Document) -> str:
    """What else was found, below the headline."""
    rest = " ".join(document.finding[1:])
    return f'<p class="standfirst">{escape(rest)}</p>' if rest else ""


def verdict_list(verdicts: Sequence[Verdict]) -> str:
    """A line each: the first ON_SMALL on any screen, those up to ON_WIDE folded on small ones (page.js), the rest
    folded on all; "" without any."""
    items = [_verdict(verdict) for verdict in verdicts]
    tiers = (items[:ON_SMALL], items[ON_SMALL:ON_WIDE], items[ON_WIDE:])
    kind = " one" if len(items) == 1 else " dense" if len(items) > DENSE else ""
    first, few, rest = (
        f'<ul class="verdicts{kind}" aria-label="Verdicts">{"".join(tier)}</ul>' if tier else "" for tier in tiers
    )
    few = f'<details class="more few" open><summary>{len(tiers[1])} more</summary>{few}</details>' if few else ""
    rest = f'<details class="more"><summary>{len(tiers[2])} more</summary>{rest}</details>' if rest else ""
    return first + few + rest


def _verdict(verdict: Verdict) -> str:
    sign, words = SIGNS[verdict.state]
    return (
        f'<li class="{verdict.state}"><span class="sign" title="{words}"><span aria-hidden="true">{sign}</span>'
        f'<span class="sr">{words}:</span></span>'
        f'<p><span class="who">{escape(verdict.label)}</span> '
        f'<span class="line">{escape(verdict.short)}</span></p></li>'
    )


def _summary(document: Document) -> str:
    """The first sentences; the others on a click."""
    sentences = [f"<li>{inline(sentence)}</li>" for sentence in document.summary]
    if not sentences:
        return ""
    first, more = sentences[:FIRST_SENTENCES], sentences[FIRST_SENTENCES:]
    rest = f"<details><summary>{len(more)} more</summary><ul>{''.join(more)}</ul></details>" if more else ""
    return f'<div class="summary"><ul aria-label="At a glance">{"".join(first)}</ul>{rest}</div>'


def _contents(sections: Sequence[Section]) -> str:
    titles = [section.title for section in sections if not section.folded]
    links = "".join(f'<li><a href="#section-{i}">{escape(title)}</a></li>' for i, title in enumerate(titles, 1))
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def _sections(sections: Sequence[Section]) -> str:
    return "\n".join(
        f'<section aria-labelledby="section-{index}"><h2 id="section-{index}">{escape(section.title)}</h2>\n'
        f"{''.join(block_html(block) for block in section.blocks)}</section>"
        for index, section in enumerate((section for section in sections if not section.folded), 1)
    )


def _fold(title: str, inner: str) -> str:
    return (
        f'<details class="fold"><summary><h2>{escape(title)}</h2></summary><div class="inside">{inner}</div></details>'
    )


def _folded(section: Section) -> str:
    return _fold(section.title, "".join(block_html(block) for block in section.blocks))


def _run(document: Document) -> str:
    """What was run and how to run it again."""
    facts = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in document.facts)
    return _fold(
        "What was run",
        f"{f'<dl>{facts}</dl>' if facts else ''}"
        f'<h3>Run it again</h3><div class="command"><pre>'
        f'<code id="command">{escape(document.command)}</code></pre>'
        f'<button type="button" id="copy">Copy</button></div>'
        f'<p role="status" id="copied" class="quiet"></p>{_cells(document)}',
    )


def _cells(document: Document) -> str:
    """The command of each, narrowed to it."""
    if not document.cells:
        return ""
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd><pre><code>{escape(command)}</code></pre></dd>" for name, command in document.cells
    )
    return f'<details><summary>One cell alone</summary><dl class="cells">{listed}</dl></details>'
