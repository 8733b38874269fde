"""The suite ruler: what a cell's result is, that ranks and batches do not change it, and what its page shows."""

import re

import pytest
from pydantic import ValidationError

from coca_train.data.ruler import TASKS
from coca_train.evaluation.suites import ruler
from coca_train.runtime.errors import DataError
from tests.evaluation.grids import blocks, byte_subject, cell, evaluation, measured, parrot, result, settings, setup

SMALL = {"tasks": ["needle", "needle_values"], "n_cases": 3, "haystack": "filler"}


def small(**options):
    return settings("ruler", **(SMALL | options))


def test_the_yaml_has_the_tasks_of_ruler():
    assert settings("ruler").tasks == [name for name in TASKS if not name.startswith("word")]


def test_an_unknown_task():
    with pytest.raises(ValidationError, match="needle_keys"):
        small(tasks=["needles"])


def test_scores(monkeypatch):
    """Answers with 4, 2, 1 and 0 of the four numbers."""
    n_said = iter([4, 2, 1, 0])
    many = small(n_cases=4)
    parrot(monkeypatch, ruler, lambda prompt: ", ".join(re.findall(r"is (\d{7})", prompt)[: next(n_said, 0)]))
    scores = result(ruler.Evaluator(many), byte_subject(), "needle_values@900", setup(["needle_values@900"]))
    assert [case["score"] for case in scores["cases"]] == [1, 0.5, 0.25, 0]
    assert scores["score"] == 0.4375
    assert scores["standard_error"] == pytest.approx(0.21347, abs=1e-5)  # 0.426956 / 2
    alone = result(ruler.Evaluator(small(n_cases=1)), byte_subject(), "needle@800", setup(["needle@800"]))
    assert alone["standard_error"] is None


def test_texts_as_haystack():
    about = setup(["needle@2000"], {"books": ["A first sentence. A second one?", "Another document."]})
    tokens = ruler.Evaluator(small(haystack="texts")).prepare(byte_subject(), about)["needle@2000"][0].tokens
    assert "A first sentence.\nA second one?\nAnother document.\nA first sentence." in bytes(tokens).decode()
    with pytest.raises(DataError, match="E-EVAL-20 text"):
        ruler.Evaluator(small(haystack="texts")).prepare(byte_subject(), setup(["needle@2000"]))


def done(name, point, score, n=4, error=0.1):
    """Of the first prompts the first are answered; the next one in part, where it does not come out even."""
    scores = [min(1.0, max(0.0, score * n - i)) for i in range(n)]
    kept = {"score": score, "standard_error": error, "n_cases": n, "prompts": point}
    return cell(name, "plain", point, kept | {"cases": [{"score": each, "answer": ""} for each in scores]})


def test_the_page():
    cells = [
        done("one", "needle@100", 1.0), done("one", "needle_values@100", 0.5), done("one", "needle@400", 0.25),
        cell("one", "plain", "needle_values@400", status="out_of_memory", reason="no room"),
        *(done("two", point, 0.5) for point in ("needle@100", "needle_values@100", "needle@400", "needle_values@400")),
    ]  # fmt: skip
    points = ("needle@100", "needle@400", "needle_values@100", "needle_values@400")
    document = ruler.Evaluator(small()).page(
        evaluation("ruler", SMALL, [measured(name, window=300) for name in ("one", "two")], points, cells)
    )
    shown = blocks(document)
    means = [[value.number for value in row.values] for row in shown["ruler-mean"].rows]
    assert means == [[0.75, None], [0.5, 0.5]]
    assert "1 of 2 tasks" in shown["ruler-mean"].rows[0].values[1].note
    assert [(line.x, line.y) for line in shown["ruler-by-length"].lines] == [
        ((100.0,), (0.75,)), ((100.0, 400.0), (0.5, 0.5))
    ]  # fmt: skip
    rows = {row.label: row.values for row in shown["ruler-tasks"].rows}
    assert [value.number for value in rows["one", "plain", "needle"]] == [1.0, 0.25]
    assert rows["one", "plain", "needle_values"][1].text == "OOM"
    assert rows["one", "plain", "needle"][0].note == "4 cases, standard error 0.100"
    one, _ = shown["ruler-map"].panels
    assert one.values == ((1.0, 0.25), (0.5, None))
    assert one.mark_after_x == 1
    (said,) = document.summary
    assert said.startswith("In prompts of 400") and "two:" in said and "0.50 (0.22 to 0.78)" in said
    assert document.title.endswith("2 tasks of 100 to 400 tokens")
