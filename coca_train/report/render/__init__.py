"""A report in every form: a page for the browser, Markdown, CSV and LaTeX of its tables, PNG and SVG of its figures."""

from pathlib import Path

from coca_train.report.blocks import Document, Table
from coca_train.report.render.contents import data_table, named_blocks
from coca_train.report.render.page import SUMMARY, render_page, summary_json
from coca_train.report.render.page import write_index as write_index
from coca_train.report.render.pictures import picture
from coca_train.report.render.plain import csv_text, latex_text, markdown_text
from coca_train.runtime.durable import write_bytes, write_text


def write_report(document: Document, directory: Path) -> dict[str, Path]:
    """Write all of it into `directory`; returns the paths by their place in it: report.html, report.md,
    summary.json, tables/<name>.csv, tables/<name>.tex, figures/<name>.png, figures/<name>.svg.

    The same document gives the same bytes. A file appears whole or not at all, the page last. Raises ValueError for a
    block's name that cannot be a file's or is not unique, StorageError when the disk refuses.
    """
    paths: dict[str, Path] = {}

    def write(place: str, data: str | bytes) -> None:
        path = directory / place
        paths[place] = write_text(path, data) if isinstance(data, str) else write_bytes(path, data)

    # All names are checked before the first file is written: a report is whole or was never begun.
    for block in list(named_blocks(document)):
        if isinstance(block, Table):
            write(f"tables/{block.name}.csv", csv_text(block))
            write(f"tables/{block.name}.tex", latex_text(block))
            continue
        write(f"tables/{block.name}.csv", csv_text(data_table(block)))
        for suffix, data in picture(block).items():
            write(f"figures/{block.name}.{suffix}", data)
    write("report.md", markdown_text(document))
    write(SUMMARY, summary_json(document))
    write("report.html", render_page(document))
    return paths
