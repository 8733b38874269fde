"""The suite recall: a cell against decoding by hand, planted answers and a planted reach, ranks, and its page."""

import json

import pytest

from coca_train.evaluation.suites import recall
from tests.evaluation.grids import blocks, byte_subject, cell, evaluation, measured, parrot, result, settings, setup

SMALL = {"n_cases": 6, "n_depths": 3}


def small(**options):
    return settings("recall", **(SMALL | options))


def value_by_hand(prompt: str) -> str:
    whole, asked = prompt.rsplit("\n", 1)
    return json.loads(whole)[json.loads(asked.removesuffix(":"))]


def test_answers_are_counted(monkeypatch):
    """In turn the value, another pair's, a value with a letter more, and nothing."""
    asked = []

    def answer(prompt):
        whole, key = prompt.rsplit("\n", 1)
        held, value, turn = json.loads(whole), value_by_hand(prompt), len(asked) % 4
        asked.append((key, held))
        other = next(each for each in held.values() if each != value)
        return [f' "{value}",\n"x": "', f' "{other}"', f' "{value}a"', " nothing"][turn]

    parrot(monkeypatch, recall, answer)
    known = result(recall.Evaluator(small(n_cases=8)), byte_subject(), 200, setup([200]))
    assert (known["accuracy"], known["more"]["others"], known["n_cases"]) == (0.25, 0.25, 8)
    assert [case["found"] for case in known["cases"]] == [True, False, False, False] * 2
    assert (known["low"], known["high"]) == pytest.approx((0.0715, 0.5907), abs=1e-4)  # Wilson, 2 of 8
    assert known["more"]["chance"] == pytest.approx(sum(1 / len(held) for _, held in asked) / 8)
    assert all(len(case["answer"]) <= 60 for case in known["cases"])


def test_the_page():
    def done(point, *found):
        case = {"hidden": "x", "depth": 0.0, "distance": point - 8, "answer": ""}
        cases = [case | {"found": each} for each in found]
        kept = {"accuracy": sum(found) / len(found), "cases": cases, "n_cases": len(cases)}
        return cell("one", "plain", point, kept | {"more": {"others": 0.5, "chance": 1 / 9}})

    cells, subjects = [done(128, True, True), done(512, False, True)], [measured("one", window=128)]
    document = recall.Evaluator(small()).page(evaluation("recall", vars(small()), subjects, (128, 512), cells))
    shown = blocks(document)
    assert [value.number for value in shown["recall-found"].rows[0].values] == [1.0, 0.5]
    assert {name.removeprefix("recall-") for name in shown} == {"found", "by-length", "depth", "by-distance", "others"}
    others = {row.label: row.values[0].number for row in shown["recall-others"].rows}
    assert others["one", "plain", "by any of the values"] == pytest.approx(1 / 9)
    (said,) = document.summary
    assert "512 tokens" in said and "0.50 (0.09 to 0.91)" in said
