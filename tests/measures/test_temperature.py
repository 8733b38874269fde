"""Attention temperature, against models whose weights hold it and formulas by hand."""

import math

import numpy as np
import pytest
import torch

from coca_train.evaluation.suites.temperature import attention_scale, changes, recommended, segments, times_best
from tests.models.conftest import LLAMA, PLAIN, build

TOKENS_BT = torch.randint(0, 101, (2, 33), generator=torch.Generator().manual_seed(5))
RAMP = {
    "theta": 10000.0,
    "factor": 8.0,
    "original_seq_len": 32,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
    "convention": "paper",
}
COCA = {"scheme": "coca", "rotary_pct": 1.0, "variant": "slack", "t_width": "half", "rope_scaling": PLAIN}


def rope(rope_scaling, rotary_pct=1.0):
    return {"scheme": "rope", "rotary_pct": rotary_pct, "rope_scaling": rope_scaling}


@pytest.mark.parametrize("scheme", [rope(PLAIN), rope(PLAIN, 0.5), COCA], ids=["rope", "partial", "coca"])
def test_scores_are_multiplied_by_one_over_t(scheme):
    model, sharper = build(LLAMA, scheme), build(LLAMA, scheme)
    with torch.no_grad():
        for block in sharper.blocks:
            block.attention.k.weight *= 1.3**2  # the score is linear in keys, or in t
    own = model(TOKENS_BT)
    with attention_scale(model, 1.3):
        scaled = model(TOKENS_BT)
    torch.testing.assert_close(scaled, sharper(TOKENS_BT), atol=1e-4, rtol=1e-4)
    assert (scaled - own).abs().max() > 1e-3
    torch.testing.assert_close(model(TOKENS_BT), own)


def test_it_takes_the_place_of_yarns_own():
    yarn, parts = build(LLAMA, rope({"name": "yarn", **RAMP})), build(LLAMA, rope({"name": "ntk_by_parts", **RAMP}))
    with attention_scale(yarn, 1.0):
        torch.testing.assert_close(yarn(TOKENS_BT), parts(TOKENS_BT))
    with attention_scale(parts, 0.1 * math.log(8) + 1):
        torch.testing.assert_close(parts(TOKENS_BT), yarn(TOKENS_BT))


def test_the_frequencies_come_back_after_an_error():
    model = build(LLAMA, rope(PLAIN))
    with pytest.raises(ZeroDivisionError), attention_scale(model, 2.0):
        raise ZeroDivisionError
    assert model.position(torch.arange(3)[None], torch.arange(3)[None], 3).query.temperature == 1.0


def test_recommended_as_the_paper_has_it_for_s_of_8():
    assert recommended(
        build(LLAMA, rope({"name": "yarn", **RAMP})).position.settings.rope_scaling, 64
    ) == pytest.approx(1.208, abs=5e-4)
    dynamic = build(LLAMA, rope({"name": "dynamic_linear", "theta": 100.0, "original_seq_len": 32}))
    assert recommended(dynamic.position.settings.rope_scaling, 256) == pytest.approx(1.208, abs=5e-4)
    assert recommended(dynamic.position.settings.rope_scaling, 16) == 1.0
    assert recommended(build(LLAMA, rope(PLAIN)).position.settings.rope_scaling, 64) == 1.0


def test_segments_tile_a_document():
    assert segments(10, 4) == [4, 4, 2]
    assert segments(8, 4) == [4, 4]


def test_changes_by_hand():
    n = np.array([2, 1])
    base, nll = np.array([[2.0, 1.0], [4.0, 3.0]]), np.array([[1.0, 2.0], [4.0, 3.0]])
    first = [math.exp(1 / 2) / math.exp(2 / 2) - 1, math.exp(2) / math.exp(1) - 1, 0.0]
    assert changes(nll, base, n).mean(0) == pytest.approx([x / 2 for x in first])  # the second document does not change


def test_the_best_of_each_document_is_counted_once():
    nll = {
        1.0: np.array([[5.0, 1.0], [2.0, 2.0], [1.0, 1.0]]),
        0.9: np.array([[6.0, 1.0], [3.0, 0.0], [2.0, 2.0]]),
        1.2: np.array([[4.0, 3.0], [2.0, 5.0], [0.0, 4.0]]),
    }
    # whole: 6, 7, 7 / 4, 3, 7 / 2, 4, 4; equal ones go to the smallest 1/√t
    assert times_best(nll) == {0.9: [0, 2, 1], 1.0: [1, 1, 2], 1.2: [2, 0, 0]}
