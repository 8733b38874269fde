"""The suite speed: who competes, who measures, what the page says."""

import pytest

from coca_train.evaluation.suites import speed
from tests.evaluation.grids import blocks, evaluate, row, settings, subject
from tests.models.conftest import PLAIN

COCA = {"scheme": "coca", "rotary_pct": 1.0, "variant": "slack", "t_width": "half", "rope_scaling": PLAIN}
OPTIONS = settings("speed", rounds=2, new_tokens=2, memory=False)


@pytest.fixture(scope="module")
def grid():
    subjects = [subject("coca", COCA), subject("learned", {"scheme": "learned", "max_len": 20})]
    return evaluate(OPTIONS, subjects, (8, 16), {}, ranks=2)


def test_every_work_has_a_time_and_a_ratio_to_each_baseline(grid):
    result = grid.find("coca", "plain", 16).result
    assert set(result["seconds"]) == set(result["ratio"]) == {"prefill", "decode", "training"}
    for work in result["seconds"]:
        assert set(result["seconds"][work]) == {"own", "rope", "nope"}
        for seconds in result["seconds"][work].values():
            assert 0 < seconds["low"] <= seconds["median"] <= seconds["high"]
        assert set(result["ratio"][work]) == {"rope", "nope"}
    assert result["peak"] == {"own": {}, "rope": {}, "nope": {}}


def test_positions_that_end_are_said_with_the_tokens_decoded(grid):
    assert grid.find("learned", "plain", 8).status == "done"
    assert grid.find("learned", "plain", 16).reason.startswith("learned has 20 positions, and 22 ")


def test_the_page_sets_the_papers_words_apart(grid):
    peak = {who: {"prefill": share * 2**30} for who, share in (("own", 3), ("rope", 2), ("nope", 1))}
    grid = grid.reduced(lambda result: {**result, "peak": peak})
    document = speed.Evaluator(OPTIONS).page(grid)
    ratios = blocks(document)["speed-ratios"]
    value = row(ratios, "coca", "plain", "decode", "rope").values[1]
    ratio = grid.find("coca", "plain", 16).result["ratio"]["decode"]["rope"]
    assert value.number == ratio["median"]
    assert value.range == f"{ratio['low']:.2f} to {ratio['high']:.2f}"
    assert f"decode {ratio['median']:.2f} ({value.range})" in document.summary[0]
    assert all(entry.theirs for entry in blocks(document)["speed-paper"].rows)
    assert not any(entry.theirs for entry in ratios.rows)
    labels = ["CoCA", "learned positions", "rope, shape of coca", "nope, shape of coca"]
    assert [line.label for line in blocks(document)["speed-prefill"].lines][:4] == labels
    memory = {line.label: line.y for line in blocks(document)["memory-prefill"].lines}
    assert memory["CoCA"] == (3.0, 3.0) and memory["nope, shape of coca"] == (1.0, 1.0)
    assert "memory-training" not in blocks(document)
    assert ("timed on", grid.find("coca", "plain", 16).result["device"]) in document.facts
