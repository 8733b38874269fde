"""The suite anomaly: which text a cell reads, that ranks add up to one, what the page says."""

from dataclasses import replace

import numpy as np
import pytest

from coca_train.evaluation.suites import anomaly
from tests.evaluation.grids import ROPE, TEXTS, blocks, evaluate, row, settings, setup, subject
from tests.models.conftest import PLAIN

COCA = {"scheme": "coca", "rotary_pct": 1.0, "variant": "strict", "t_width": "half", "rope_scaling": PLAIN}
LINEAR = {"name": "linear", "theta": 10000.0, "factor": 4.0}
SMALL = {"pairs": 64}


@pytest.fixture(scope="module")
def grid():
    subjects = [subject("rope", ROPE, [LINEAR]), subject("coca", COCA), subject("alibi", "alibi_plain")]
    return evaluate(settings("anomaly", **SMALL), subjects, (16, 64, 4096), TEXTS)


def test_any_number_of_ranks_finds_the_same(grid):
    again = evaluate(settings("anomaly", **SMALL), [subject("rope", ROPE)], (16, 64, 4096), TEXTS, ranks=5)
    for length in (16, 64):
        assert again.find("rope", "plain", length) == grid.find("rope", "plain", length)


def test_shares_are_of_all_pairs_with_an_angle(grid):
    result = grid.find("rope", "plain", 64).result
    assert result["documents"] == 3
    counts = sum(map(sum, result["histogram_by_pair"]))
    assert counts == 3 * 64 * 2 * 4 * 6  # texts, drawn pairs, layers, heads, pairs of features
    beyond = sum(sum(bins[18:]) for bins in result["histogram_by_pair"])
    assert result["anomalous"] == pytest.approx(beyond / counts)
    assert result["anomalous"] == pytest.approx(sum(map(sum, result["by_head"])) / 8, rel=1e-6)
    assert 0 < result["abnormal"] < result["anomalous"]
    assert result["borders"]["k"] + result["abnormal"] == pytest.approx(result["anomalous"], rel=1e-6)
    assert grid.find("rope", "linear", 64).result["slowed_by_pair"] == pytest.approx([4.0] * 6)


def test_intervals_are_over_documents(grid):
    """Against percentiles of the share of three documents drawn with replacement, each asked alone."""
    each = subject("rope", ROPE)
    material = anomaly.Evaluator(settings("anomaly")).prepare(each, setup((16, 64), TEXTS))
    texts = [
        anomaly.anomaly_sums(each.model, [text[:64]], [i], n_pairs=64, seed=5)[0]
        for i, text in enumerate(material.texts)
    ]
    draws = np.random.default_rng(0).integers(0, 3, (1000, 3))
    result = grid.find("rope", "plain", 64).result
    beyond, known = (np.array([sums[name].sum() for sums in texts]) for name in ("anomalous", "known"))
    ends = np.percentile(beyond[draws].sum(1) / known[draws].sum(1), (2.5, 97.5))
    assert (result["low"]["anomalous"], result["high"]["anomalous"]) == pytest.approx(tuple(ends))
    for key in ("weighted", "placed", "abnormal", "empty"):
        assert result["low"][key] <= result[key] <= result["high"][key]
    for key in ("borders", "reach_by_pair", "density"):
        values = result[key].values() if key == "borders" else result[key]
        low, high = ((e.values() if key == "borders" else e) for e in (result["low"][key], result["high"][key]))
        assert all(a <= b <= c for a, b, c in zip(low, values, high, strict=True))
    page = blocks(anomaly.Evaluator(settings("anomaly", **SMALL)).page(grid))
    assert row(page["anomaly-shares"], "rope", "plain").values[0].range
    assert row(page["anomaly-borders"], "rope", "plain", "-q").values[0].interval
    assert all(line.low for name in ("anomaly-angles", "anomaly-reach") for line in page[name].lines)


def test_what_cannot_be_measured_says_why(grid):
    assert "alibi rotates nothing" in grid.find("alibi", "plain", 16).reason
    assert grid.find("rope", "plain", 4096).reason.split()[-2] == "4,097"


def test_the_page_sets_coca_beside_the_others(grid):
    document = anomaly.Evaluator(settings("anomaly", **SMALL)).page(grid)
    shares = blocks(document)["anomaly-shares"]
    assert row(shares, "coca", "plain").values[0].text == "0.0%"
    assert row(shares, "coca", "plain").values[3].number == pytest.approx(0.5, abs=0.25)
    assert ("alibi", "plain") not in [row.label for row in shares.rows]
    assert "alibi rotates nothing" in str(document.sections[-1].blocks)
    numbers = blocks(document)["anomaly-key-borders"]  # the paper's d/2 · h · L: 6 pairs, 4 heads, 2 layers
    assert [value.text for value in row(numbers, "rope", "plain").values] == ["48", "48"]
    assert [value.text for value in row(numbers, "coca", "plain").values] == ["0", "48"]
    assert "48 of 48 possible borders of k." in document.summary[0]
    borders = blocks(document)["anomaly-borders"]
    assert [value.text for value in row(borders, "coca", "plain", "k").values] == ["0.00", "0.00", "–"]
    assert [line.label for line in blocks(document)["anomaly-angles"].lines] == ["rope", "coca"]
    assert sum(blocks(document)["anomaly-angles"].lines[0].y) == pytest.approx(36)
    assert blocks(document)["anomaly-angles"].y_log  # CoCA's one full bin is 36 times a uniform one
    only = anomaly.Evaluator(settings("anomaly", **SMALL)).page(replace(grid, subjects=grid.subjects[:1]))
    assert not blocks(only)["anomaly-angles"].y_log
    assert [line.label for line in blocks(document)["anomaly-reach"].lines] == ["RoPE", "RoPE + PI"]
    assert len(document.summary) == 2


def test_hidden_keys_are_refused():
    each = subject("rope", ROPE)
    each.model.attention_pattern.settings = type("S", (), {"name": "sinks"})()
    reason = anomaly.Evaluator(settings("anomaly")).impossible(each, 16, None)  # type: ignore[arg-type]
    assert "sinks hides" in reason
