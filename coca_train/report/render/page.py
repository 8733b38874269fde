"""HTML: the page of a report, and one over the reports of a folder. A page needs nothing else: its looks, its little
script and its downloads are in it, and its Content-Security-Policy forbids everything from outside.

The elements are written in templates/, where every text is escaped. Next to each report lies SUMMARY, what its line
in the index is made of. A folder of runs has reports of its runs and of their stages, of comparisons and
sweeps, and evaluations next to it.
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from os.path import relpath
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import TypeAdapter

from coca_train.report.blocks import ANSWERED, ANSWERS, Document, Table, Verdict
from coca_train.report.render import chart, contents, plain, scales
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import as_json, write_text

SUMMARY = "summary.json"
INDEX = "index.html"
PLACES = ("*", "*/report", "*/report/*", "comparisons/*", "sweeps/*")
EVALUATIONS = "evaluations"  # folder of the evaluations of runs, next to that of the runs


def render_page(document: Document) -> str:
    """Return the page of a report."""
    # Where nothing can be said of any model the finding has said why.
    verdicts = document.verdicts if not document.finding or any(each.parts for each in document.verdicts) else ()
    opening = contents.split_opening(document)
    return templates().get_template("report.html").render(document=document, opening=opening, verdicts=verdicts)


@cache
def templates() -> Environment:
    """Return the templates with the functions that they call."""
    loader = PackageLoader("coca_train.report.render")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = files("coca_train.report.render")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    called = (
        *(contents.data_table, contents.explain_marks, contents.footnotes),
        *(contents.paragraphs, contents.picture_note, contents.split_code, contents.table_cells),
        *(chart.looks, chart.plots, chart.small_multiples),
        *(plain.csv_text, plain.latex_text, scales.square_style, has_notes),
    )
    environment.globals |= {function.__name__: function for function in called}
    environment.globals |= {
        "style": style,
        "script": script,
        "script_digest": base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        "PAPER": contents.PAPER,
        "SIGNS": contents.SIGNS,
        "answer_classes": {sign: word for word, sign in ANSWERS.items()},
        "heat_colours": list(map(scales.light_dark, scales.RAMP, scales.DARK_RAMP)),
        "kind_of": lambda block: type(block).__name__,
    }
    environment.filters |= {"px": "{:.1f}".format, "repr": repr}
    environment.tests["hushed"] = scales.needs_panels
    return environment


def has_notes(table: Table) -> bool:
    """Whether a table has notes on its figures to show on a click."""
    noted = any(value.note and value.number is not None for row in table.rows for value in row.values)
    return noted and table.name != ANSWERED


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What an index shows of a report, as SUMMARY has it."""

    title: str
    command: str
    finding: tuple[str, ...]
    summary: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One line of an index. place: of the report, from there. sentence: what it found. written: when,
    "2026-11-23 22:43"; age: to sort by."""

    place: str
    title: str
    sentence: str
    command: str
    verdicts: tuple[Verdict, ...]
    written: str
    age: float


def summary_json(document: Document) -> str:
    """Return what an index shows of a report."""
    said = {field: tuple(getattr(document, field)) for field in ("finding", "summary", "verdicts")}
    return as_json(asdict(Summary(title=document.title, command=document.command, **said)))


def write_index(root: Path) -> Path | None:
    """Write <root>/index.html over the reports in it, the newest first; None where there is none.

    A summary that cannot be read is left out: another report's damage is no reason to fail. Raises StorageError when
    the disk refuses.
    """
    reports = sorted(_find_reports(root), key=lambda each: (each.age, each.place))
    if not reports:
        return None
    folder = root.resolve().name
    return write_text(root / INDEX, templates().get_template("index.html").render(folder=folder, reports=reports))


def _find_reports(root: Path) -> Iterator[Listed]:
    paths = [path for pattern in PLACES for path in root.glob(f"{pattern}/{SUMMARY}")]
    paths += (root.parent / EVALUATIONS).glob(f"*/{SUMMARY}") if root.name != EVALUATIONS else []
    reader = TypeAdapter(Summary)
    for path in paths:
        try:
            # Encoded, because JSON can have strings that no page can: those that UTF-8 cannot write.
            known = json.dumps(untrusted_io.read_object(path), ensure_ascii=False).encode("utf-8")
            summary, since = reader.validate_json(known), path.stat().st_mtime
            place = relpath(path.parent, root).replace(os.sep, "/").encode("utf-8").decode("utf-8")
            written = time.strftime("%Y-%m-%d %H:%M", time.localtime(since))
        except (OSError, ValueError, OverflowError):
            continue
        if (path.parent / "report.html").is_file():
            yield Listed(
                place=place,
                title=summary.title,
                sentence=" ".join(summary.finding) or next(iter(summary.summary), ""),
                command=summary.command,
                verdicts=() if summary.finding else summary.verdicts,  # what they say is in the finding
                written=written,
                age=-since,
            )
