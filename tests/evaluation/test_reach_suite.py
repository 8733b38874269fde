"""`+eval=reach`, whole: its parts' cells in one grid, kept as their own suites keep them, and one verdict a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.messages import ConfigError
from coca_train.evaluation import pipeline
from coca_train.evaluation.configuration import load
from coca_train.report.blocks import Document

PARTS = {"holds", "uses", "finds"}


@pytest.fixture
def evaluate(tmp_path, folders, books, monkeypatch):
    """evaluate(choice, "eval.…=…", ...): the record and the page; cells are kept between calls."""
    pages: list[Document] = []
    monkeypatch.setattr(pipeline, "write_report", lambda document, directory: pages.append(document) or {})
    monkeypatch.setattr(pipeline, "write_index", lambda root: None)

    def results(choice: str, *words: str) -> tuple[dict[str, Any], Document]:
        own = [
            f"+eval={choice}",
            f"checkpoint={folders('one')}",
            f"text.files=[{books}]",
            f"work.root={tmp_path / 'made'}",
        ]
        directory = pipeline.evaluate(load([*own, *words])[0], "the command")
        return json.loads((directory / "results.json").read_text()), pages[-1]

    return results


def test_its_parts_are_measured_in_one_grid_and_found_again(evaluate, tmp_path: Path, capsys) -> None:
    words = ["grid.lengths=[24,48]", "eval.works=null", "eval.finds.n_cases=2", "eval.reads.stride=7"]
    record, page = evaluate("reach", *words)
    by_suite = {
        suite: [cell["point"] for cell in record["cells"] if cell["suite"] == suite]
        for suite in ("perplexity", "recall")
    }
    assert by_suite == {"perplexity": [24, 48], "recall": [24, 48]}
    (said,) = page.verdicts
    assert said.state == "unknown" and {name for name, _ in said.parts} <= PARTS
    assert {"holds", "uses"} <= {name for name, _ in said.parts}
    assert said.line in "".join(capsys.readouterr())
    folded = {section.title: section.folded for section in page.sections}
    assert folded["Definition"] and not folded["Perplexity, books"]
    # The suite by itself finds the cells that the part has measured.
    kept = sorted(path.name for path in (tmp_path / "made" / "cells").rglob("*.json"))
    evaluate("perplexity", "grid.lengths=[24,48]", "eval.stride=7", "text.max_documents=24")
    assert sorted(path.name for path in (tmp_path / "made" / "cells").rglob("*.json")) == kept


def test_a_part_that_is_left_out_is_not_asked(evaluate) -> None:
    record, page = evaluate("reach", "grid.lengths=[48]", "eval.reads=null", "eval.works=null", "eval.finds.n_cases=2")
    assert {cell["suite"] for cell in record["cells"]} == {"recall"}
    assert {name for verdict in page.verdicts for name, _ in verdict.parts} <= {"finds"}


def test_nothing_asked_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is asked"):
        load(["+eval=reach", "checkpoint=one", "eval.reads=null", "eval.finds=null", "eval.works=null"])
