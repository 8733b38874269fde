"""The suite anomaly: which text a cell reads, that ranks add up to one, what the page says."""

import numpy as np
import pytest

from coca_train.attention import patterns
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
    share = {name: values[0] for name, values in result["shares"].items()}
    assert result["documents"] == 3
    assert share["anomalous"] == pytest.approx(sum(map(sum, result["by_head"])) / 8, rel=1e-6)
    assert 0 < share["abnormal"] < share["anomalous"]
    assert share["k"] + share["abnormal"] == pytest.approx(share["anomalous"], rel=1e-6)
    assert grid.find("rope", "linear", 64).result["slowed"] == pytest.approx([4.0] * 6)


def test_intervals_are_over_documents(grid):
    """Against percentiles of the share of three documents drawn with replacement, each asked alone."""
    each = subject("rope", ROPE)
    material = anomaly.Evaluator(settings("anomaly")).prepare(each, setup((16, 64), TEXTS))
    texts = [
        anomaly.anomaly_sums(each.model, [text[:64]], [i], n_pairs=64, seed=5)[0]
        for i, text in enumerate(material.texts)
    ]
    draws = np.random.default_rng(0).integers(0, 3, (1000, 3))
    shares = grid.find("rope", "plain", 64).result["shares"]
    beyond, known = (np.array([sums[name].sum() for sums in texts]) for name in ("anomalous", "known"))
    ends = np.percentile(beyond[draws].sum(1) / known[draws].sum(1), (2.5, 97.5))
    assert shares["anomalous"] == pytest.approx([beyond.sum() / known.sum(), *ends])
    assert all(low <= share <= high for share, low, high in shares.values())
    page = blocks(anomaly.Evaluator(settings("anomaly", **SMALL)).page(grid))
    assert all(value.interval for entry in page["anomaly-shares"].rows[:5] for value in entry.values[:2])


def test_what_cannot_be_measured_says_why(grid):
    assert "alibi rotates nothing" in grid.find("alibi", "plain", 16).reason
    assert grid.find("rope", "plain", 4096).reason.split()[-2] == "4,097"


def test_the_page_sets_coca_beside_the_others(grid):
    document = anomaly.Evaluator(settings("anomaly", **SMALL)).page(grid)
    shares = blocks(document)["anomaly-shares"]
    assert [value.text for value in row(shares, "coca", "plain", "anomalous").values] == ["0.0%", "0.0%", "–"]
    assert row(shares, "coca", "plain", "border k crossed, times a pair").values[0].text == "0.00"
    assert not any(entry.label[0] == "alibi" for entry in shares.rows)
    assert "alibi rotates nothing" in str(document.sections[-1].blocks)
    numbers = blocks(document)["anomaly-key-borders"]  # the paper's d/2 · h · L: 6 pairs, 4 heads, 2 layers
    assert [(v.text, v.note) for v in row(numbers, "rope", "plain").values[:2]] == [("48", "of 48")] * 2
    assert row(numbers, "coca", "plain").values[0].text == "0"
    assert "48 of 48 possible borders of k." in document.summary[0]
    assert len(document.summary) == 2 and "anomaly-heads-2" in blocks(document)
    factors = {line.label: line.y for line in blocks(document)["anomaly-slowed"].lines}
    assert factors["RoPE + PI"] == pytest.approx((4.0,) * 6) and factors["RoPE"] == pytest.approx((1.0,) * 6)


def test_hidden_keys_are_refused():
    each = subject("rope", ROPE)
    each.model.set_attention_pattern(patterns.settings({"name": "sinks", "n_sink": 2, "window": 4}))
    reason = anomaly.Evaluator(settings("anomaly")).impossible(each, 16, None)  # type: ignore[arg-type]
    assert "sinks hides" in reason
