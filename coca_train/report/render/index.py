"""One page over the reports of a folder: each with what it found, a thumbnail, when it was written, and the way there.

Beside every report stands SUMMARY, what its line is made of, and THUMBNAIL. A folder of runs has reports of its runs
and of their stages, of comparisons and sweeps, and evaluations next to it.
"""

import base64
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from os.path import relpath
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
THUMBNAIL = "thumbnail.png"
PLACES = ("*", "*/report", "*/report/*", "comparisons/*", "sweeps/*")
PNG, LARGEST = b"\x89PNG\r\n", 1 << 18  # how a picture begins; its size [bytes]
BESIDE = "evaluations"  # folder of the evaluations of runs, next to that of the runs


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
    picture: bytes


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
    paths = [path for pattern in PLACES for path in root.glob(f"{pattern}/{SUMMARY}")]
    paths += (root.parent / BESIDE).glob(f"*/{SUMMARY}") if root.name != BESIDE else []
    for path in paths:
        try:
            known = _read(outside.read_object(path))
            place, since = _text(relpath(path.parent, root).replace(os.sep, "/")), path.stat().st_mtime
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(since))
        except (OSError, KeyError, TypeError, ValueError, OverflowError):
            continue
        if (path.parent / "report.html").is_file():
            yield Listed(place=place, written=written, age=-since, picture=_picture(path.parent), **known)


def _picture(directory: Path) -> bytes:
    """The thumbnail; nothing where there is none, or something else has its name."""
    try:
        data = outside.read_bytes(directory / THUMBNAIL, LARGEST)
    except (OSError, ValueError):
        return b""
    return data if data.startswith(PNG) else b""


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
        "verdicts": () if known["finding"] else tuple(verdicts),  # what they say is in the finding
    }


def _line(each: Listed) -> str:
    said = (f"<p>{escape(each.first)}</p>" if each.first else "") + verdict_list(each.verdicts)
    when = f'<time datetime="{each.written.replace(" ", "T")}">{each.written}</time>'
    data = base64.b64encode(each.picture).decode("ascii")
    image = f'<img class="thumbnail" alt="" src="data:image/png;base64,{data}">'
    picture = f'<span class="frame">{image}</span>' if data else ""
    return (
        f'<li><div>{picture}</div><div><h2><a href="{quote(each.place)}/report.html">{escape(each.title)}</a></h2>'
        f'<p class="quiet">{when} · {escape(each.place)}</p>{said}'
        f"<details><summary>Its command</summary><pre><code>{escape(each.command)}</code></pre></details></div></li>"
    )
