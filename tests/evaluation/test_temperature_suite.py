"""The suite temperature: its points, that ranks add up to one, what the page says."""

import math

import pytest

from coca_train.evaluation.suites import temperature
from tests.evaluation.grids import ROPE, WORDS, blocks, evaluate, row, settings, subject

LINEAR = {"name": "linear", "theta": 10000.0, "factor": 8.0}
TEXTS = {"a": [WORDS, WORDS[5:] * 2], "b": [WORDS[9:] * 3]}
OPTIONS = settings("temperature", scales=[1.2, 1.0], document_tokens=40, block=16)


@pytest.fixture(scope="module")
def grid():
    return evaluate(OPTIONS, [subject("rope", ROPE, [LINEAR]), subject("nope", "nope")], (), TEXTS)


def test_the_points_are_scales_with_one_among_them(grid):
    assert grid.points == ("1", "1.2")
    assert "rotates nothing" in grid.find("nope", "plain", "1").reason
    for scales in ([0.9, 1.1], [1.0, 1.1, 1.1], [1.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="scales"):
            settings("temperature", scales=scales)


def test_any_number_of_ranks_finds_the_same(grid):
    again = evaluate(OPTIONS, [subject("rope", ROPE)], (), TEXTS, ranks=4)
    assert again.find("rope", "plain", "1.2") == grid.find("rope", "plain", "1.2")


def test_the_page_says_which_is_best_beside_what_is_recommended(grid):
    document = temperature.Evaluator(OPTIONS).page(grid)
    nll = {point: grid.find("rope", "linear", point).result["nll"] for point in ("1", "1.2")}
    change = sum(math.exp((sum(a) - sum(b)) / 40) - 1 for a, b in zip(nll["1.2"], nll["1"], strict=True)) / 3
    curve = blocks(document)["temperature"].lines[1]
    assert curve.x == (1.0, 1.2)
    assert curve.y == pytest.approx((0.0, 100 * change))
    documents = [math.exp((sum(a) - sum(b)) / 40) - 1 for a, b in zip(nll["1.2"], nll["1"], strict=True)]
    # Of three documents, each in every draw with a chance of 1 in 27, the interval ends at the extremes themselves.
    assert (curve.low[1], curve.high[1]) == pytest.approx((100 * min(documents), 100 * max(documents)))
    assert (curve.low[0], curve.high[0]) == (0.0, 0.0)  # what changes are relative to
    assert "RoPE + PI: inconclusive, 3" in document.summary[1] and "1.208" in document.summary[1]
    best = blocks(document)["temperature-best"]
    values = row(best, "rope", "linear").values
    assert (values[0].number, values[0].interval) == (1.2 if change < 0 else 1.0, (1.0, 1.2))
    assert values[1].text == "1.208"
    assert [entry.label[0] for entry in best.rows if entry.theirs] == ["LLaMA 7b (YaRN, A.2)"]
    counts = blocks(document)["temperature-counts-1"]
    assert counts.columns == ("1 to 16", "17 to 32", "33 to 40", "whole")
    assert [sum(entry.values[i].number for entry in counts.rows) for i in range(4)] == [3, 3, 3, 3]
    assert blocks(document)["temperature"].marks == (
        (1.0, "recommended for RoPE"),
        (pytest.approx(1.2079, abs=1e-4), "recommended for RoPE + PI"),
    )
