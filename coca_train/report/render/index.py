"""One page over the reports of a folder: a line each, with its verdicts, when it was written, and the way there.

Beside every report stands SUMMARY, what its line is made of. A folder may hold reports in its folders or, as a folder
of runs does, one floor below (`<run>/report`, `comparison`).
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coca_train.report.blocks import Document, Verdict
from coca_train.report.render.html import framed, verdict_list
from coca_train.runtime import outside
from coca_train.runtime.durable import as_json, write_text

SUMMARY = "summary.json"
INDEX = "index.html"
PLACES = ("*", "*/report")


def summary_json(document: Document) -> str:
    """What an index shows of a report."""
    known = {"title": document.title, "command": document.command, "summary": list(document.summary)}
    return as_json({**known, "verdicts": [asdict(verdict) for verdict in document.verdicts]})


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One line. place: of the report, from the index. written: seconds since 1970."""

    place: str
    title: str
    first: str  # sentence of its summary
    command: str
    verdicts: tuple[Verdict, ...]
    written: float


def write_index(root: Path) -> Path | None:
    """Write <root>/index.html over the reports in it, the newest first; None where there is none.

    A summary that cannot be read is left out: another report's damage is no reason to fail. Raises StorageError when
    the disk refuses.
    """
    listed = sorted(_listed(root), key=lambda each: (-each.written, each.place))
    if not listed:
        return None
    lines = "".join(map(_line, listed))
    title = f"Reports in {root.resolve().name}"
    count = f"{len(listed)} report{'s' if len(listed) > 1 else ''}, the newest first"
    body = f"""<header>
<button type="button" id="theme"><span aria-hidden="true">◐</span> <span class="sr">Dark theme</span></button>
<h1>{escape(title)}</h1>
<p class="quiet">{count}</p>
</header>
<main id="main" tabindex="-1">
<ul class="reports">{lines}</ul>
</main>"""
    return write_text(root / INDEX, framed(title, body))


def _listed(root: Path) -> Iterator[Listed]:
    for path in (path for pattern in PLACES for path in root.glob(f"{pattern}/{SUMMARY}")):
        try:
            known = _read(outside.read_object(path))
            written = path.stat().st_mtime
        except (OSError, KeyError, TypeError, ValueError):
            continue
        if (path.parent / "report.html").is_file():
            yield Listed(place=path.parent.relative_to(root).as_posix(), written=written, **known)


def _read(known: Mapping[str, Any]) -> dict[str, Any]:
    """Raises KeyError, TypeError or ValueError for what `summary_json` did not write."""
    verdicts = []
    for each in known["verdicts"]:
        parts = tuple((str(name), str(words)) for name, words in each["parts"])
        if each["state"] not in ("reads", "none", "unknown"):
            raise ValueError(f"no state of a verdict: {each['state']}")
        verdicts.append(Verdict(label=str(each["label"]), line=str(each["line"]), parts=parts, state=each["state"]))
    return {
        "title": str(known["title"]),
        "command": str(known["command"]),
        "first": str(next(iter(known["summary"]), "")),
        "verdicts": tuple(verdicts),
    }


def _line(each: Listed) -> str:
    day, hour = (time.strftime(form, time.localtime(each.written)) for form in ("%Y-%m-%d", "%H:%M"))
    said = verdict_list(each.verdicts) or (f"<p>{escape(each.first)}</p>" if each.first else "")
    return (
        f'<li><h2><a href="{quote(each.place)}/report.html">{escape(each.title)}</a></h2>'
        f'<p class="quiet"><time datetime="{day}T{hour}">{day} {hour}</time> · {escape(each.place)}</p>{said}'
        f"<details><summary>Its command</summary><pre><code>{escape(each.command)}</code></pre></details></li>"
    )
