"""The command of one cell, typed: it finds that cell again and measures nothing."""

import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from coca_train.evaluation import pipeline
from coca_train.evaluation.configuration import load
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.suites import SUITES
from coca_train.report.blocks import Document
from coca_train.report.render.page import render_page
from coca_train.runtime.durable import read_json

BEYOND = 4096  # [tokens], which no document has
TWO = ["grid.rope_scalings=[trained,dynamic_ntk@alpha:4]", "text.max_documents=3"]


@pytest.fixture
def evaluate(tmp_path: Path, folders: Any, books: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """evaluate(words): the record, and the page."""
    pages: list[Document] = []
    monkeypatch.setattr(pipeline, "write_report", lambda document, directory: pages.append(document) or {})
    monkeypatch.setattr(pipeline, "write_index", lambda root: None)

    def typed(words: list[str]) -> tuple[Evaluation, Document]:
        command = f"python -m coca_train evaluate {shlex.join(words)}"
        directory = pipeline.evaluate(load(words)[0], command)
        return Evaluation.from_json(read_json(directory / "results.json")), pages[-1]

    def first(suite: str, *words: str) -> tuple[Evaluation, Document]:
        models = f"checkpoint={folders('one')},{folders('two')}"
        return typed([f"+eval={suite}", models, f"text.files=[{books}]", f"work.root={tmp_path}", *words])

    typed.first = first  # type: ignore[attr-defined]
    return typed


@pytest.mark.parametrize(
    ("suite", "words", "lengths"),
    [
        # Documents are chosen and cut by the longest length that one of them has.
        ("perplexity", TWO, (24, 48, 96, BEYOND)),
        ("position_loss", [*TWO, "eval.block=8"], (24, 48, BEYOND)),
        ("recall", ["eval.n_cases=1"], (48, 96)),
    ],
)
def test_each_cells_command_finds_it_and_measures_nothing(
    evaluate: Any, monkeypatch: pytest.MonkeyPatch, suite: str, words: list[str], lengths: tuple[int, ...]
) -> None:
    whole, page = evaluate.first(suite, *words, f"grid.lengths=[{','.join(map(str, lengths))}]", "grid.names=[a,b]")
    done = [cell for cell in whole.cells if cell.status == "done"]
    assert len(page.cells) == len(done) > 2
    assert all(command in unescape(render_page(page)) for _, command in page.cells)

    def measured(*_: Any) -> None:
        raise AssertionError("a cell was measured anew")

    monkeypatch.setattr(SUITES.module(suite).Evaluator, "measure", measured)
    for (name, command), cell in list(zip(page.cells, done, strict=True))[:: 3 if len(done) > 6 else 1]:
        narrow, _ = evaluate(shlex.split(command)[4:])
        assert name.endswith(f" at {cell.point:,} tokens") and name.startswith(cell.subject)
        assert narrow.name == f"{suite}-cell"
        assert {each.subject for each in narrow.cells} == {cell.subject}
        assert {each.variant for each in narrow.cells} == {cell.variant}
        found = narrow.find(cell.subject, cell.variant, cell.point)
        assert found is not None and found.result == cell.result
        assert len(narrow.cells) <= min(3, len(lengths))


def test_of_tasks_alone_a_command_stands_for_all_of_a_length(evaluate: Any) -> None:
    """Their cells are no lengths, `needle@256`, those of the grid are."""
    options = ["eval.reads=null", "eval.finds=null", "eval.works.n_cases=1", "eval.works.tasks=[needle]"]
    whole, page = evaluate.first("reach", *options, "grid.lengths=[24,400]", "grid.names=[a,b]")
    assert {cell.point for cell in whole.cells if cell.status == "done"} == {"needle@400"}
    assert [name for name, _ in page.cells] == ["a at 400 tokens", "b at 400 tokens"]
    assert all("grid.lengths=[400]" in shlex.split(command) for _, command in page.cells)
