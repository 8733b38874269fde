"""The report as one HTML page that needs nothing else: its looks, its little script and its downloads are in it.

A Content-Security-Policy in the page forbids everything from outside, and every script but its own (by digest).
"""

import base64
import hashlib
from html import escape
from importlib.resources import files

from coca_train.report.blocks import Document
from coca_train.report.render.html_blocks import block_html, inline


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
