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


def test_the_fit_over_several_factors_stands_beside_the_rule():
    """Documents as long as each factor makes the window; what the curves say is put there, so that the fit is known."""
    options = settings("temperature_yarn", scales=[0.9, 1.0, 1.1, 1.2, 1.3, 1.4], block=16)
    linear = LINEAR | {"factor": 2.0}
    parts = {"name": "ntk_by_parts", "theta": 10000.0, "factor": 3.0, "original_seq_len": 32, "beta_fast": 32.0}
    parts |= {"beta_slow": 1.0, "convention": "paper"}
    long = {"a": [WORDS * 3, WORDS[5:] * 3]}
    grid = evaluate(options, [subject("rope", ROPE, [linear, parts])], (), long)
    tokens = {name: grid.find("rope", name, "1").result["tokens"] for name in ("plain", "linear", "ntk_by_parts")}
    assert tokens == {"plain": [16, 16], "linear": [16] * 4, "ntk_by_parts": [16] * 6}
    for cell in grid.cells:
        s = {"plain": 1.0, "linear": 2.0, "ntk_by_parts": 3.0}[cell.variant]
        best = 0.05 * math.log(s) + 1.1
        cell.result["nll"] = [[n * (3 + (float(cell.point) - best) ** 2) for n in cell.result["tokens"]]] * 2
    shown = blocks(temperature.Evaluator(options).page(grid))
    ours, line, rule = shown["temperature-rule"].lines
    assert ours.x == line.x == rule.x == (1.0, 2.0, 3.0)
    assert ours.y == pytest.approx([0.05 * math.log(s) + 1.1 for s in ours.x], abs=2e-3)
    assert line.label == "rope, 0.050 ln s + 1.100"
    assert rule.theirs and rule.y == pytest.approx([1.0, 1.0693, 1.1099], abs=1e-4)
    assert [value.number for value in row(shown["temperature-fit"], "rope").values] == pytest.approx(
        [0.05, 1.1, 3], abs=2e-3
    )


def test_one_factor_alone_has_no_fit(grid):
    """Of nope there is nothing at all, and of rope's two factors the best is an end of the two values tried."""
    assert "temperature-rule" not in blocks(temperature.Evaluator(OPTIONS).page(grid))
