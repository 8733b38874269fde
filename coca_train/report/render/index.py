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
from coca_train.report.render.contents import SIGNS
from coca_train.report.render.html import framed, verdict_list
from coca_train.runtime import outside
from coca_train.runtime.durable import as_json, write_text

SUMMARY = "summary.json"
INDEX = "index.html"
PLACES = ("*", "*/report")


def summary_json(document: Document) -> str:
    """What an index shows of a report."""
    known = {
        "title": document.title,
        "command": document.command,
        "finding": list(document.finding),
        "summary": list(document.summary),
    }
    return as_json({**known, "verdicts": [asdict(verdict) for verdict in document.verdicts]})


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One line. place: of the report, from the index. written: when, "2026-11-23 22:43"; age: to sort by."""

    place: str
    title: str
    first: str  # what it found
    command: str
    verdicts: tuple[Verdict, ...]
    written: str
    age: float


def write_index(root: Path) -> Path | None:
    """Write <root>/index.html over the reports in it, the newest first; None where there is none.

    A summary that cannot be read is left out: another report's damage is no reason to fail. Raises StorageError when
    the disk refuses.
    """
    listed = sorted(_listed(root), key=lambda each: (each.age, each.place))
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
            place, since = _text(path.parent.relative_to(root).as_posix()), path.stat().st_mtime
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(since))
        except (OSError, KeyError, TypeError, ValueError, OverflowError):
            continue
        if (path.parent / "report.html").is_file():
            yield Listed(place=place, written=written, age=-since, **known)


def _text(value: Any) -> str:
    """As words of a page. Raises ValueError where UTF-8 has no way to write them."""
    return str(value).encode("utf-8").decode("utf-8")


def _read(known: Mapping[str, Any]) -> dict[str, Any]:
    """Raises KeyError, TypeError or ValueError for what `summary_json` did not write."""
    verdicts = []
    for each in known["verdicts"]:
        parts = tuple((_text(name), _text(words)) for name, words in each["parts"])
        if each["state"] not in SIGNS:
            raise ValueError(f"no state of a verdict: {each['state']}")
        label, line = _text(each["label"]), _text(each["line"])
        verdicts.append(Verdict(label=label, line=line, parts=parts, state=each["state"]))
    return {
        "title": _text(known["title"]),
        "command": _text(known["command"]),
        "first": _text(" ".join(known["finding"]) or next(iter(known["summary"]), "")),
        "verdicts": tuple(verdicts),
    }


def _line(each: Listed) -> str:
    said = (f"<p>{escape(each.first)}</p>" if each.first else "") + verdict_list(each.verdicts)
    when = f'<time datetime="{each.written.replace(" ", "T")}">{each.written}</time>'
    return (
        f'<li><h2><a href="{quote(each.place)}/report.html">{escape(each.title)}</a></h2>'
        f'<p class="quiet">{when} · {escape(each.place)}</p>{said}'
        f"<details><summary>Its command</summary><pre><code>{escape(each.command)}</code></pre></details></li>"
    )
