import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from coca_train.evals.extrapolation import Extrapolation, extrapolate
from coca_train.report.files import decode, encode


def documents(n_tokens, count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, n_tokens + i) for i in range(count)]


POSITIONS = {"plain": SimpleNamespace(scheme="fake", boost=0.0), "other": SimpleNamespace(scheme="fake", boost=0.5)}


def measure(model, docs=None, windows=(16, 32, 64), positions=None, **options):
    return extrapolate(
        model,
        docs if docs is not None else {"text": documents(65), "code": documents(70, 2, 1)},
        positions or POSITIONS,
        run="r",
        windows=windows,
        training_window=16,
        micro_batch_tokens=128,
        **options,
    )


def test_every_window_scores_the_same_tokens(fake_model):
    result = measure(fake_model())
    assert {c.result.n_tokens for c in result.cells if c.source == "text"} == {3 * 64}
    assert {c.result.n_tokens for c in result.cells if c.source == "all"} == {5 * 64}
    assert result.document_tokens == 65
    assert result.stride == 16
    assert len(result.cells) == 3 * 2 * 3


def test_documents_are_cut_and_dynamic_frequencies_see_the_window(fake_model):
    doc = documents(200, 1)[0]
    model = fake_model()
    result = measure(model, {"text": [doc]}, windows=(16, 64), positions={"plain": POSITIONS["plain"]})
    nll = 0.0
    for target in range(1, 65):  # one window of 64: positions 0 .. 63, l = 64
        nll += abs(doc[:target].mean() - doc[target]) / 100 + 1 / target + 64 / 1000
    assert result.cell("text", "plain", 64).nll_sum == pytest.approx(nll, rel=1e-6)
    nll = 0.0
    for target in range(1, 65):  # windows of 16 side by side
        begin = (target - 1) // 16 * 16
        nll += abs(doc[begin:target].mean() - doc[target]) / 100 + 1 / (target - begin) + 16 / 1000
    assert result.cell("text", "plain", 16).nll_sum == pytest.approx(nll, rel=1e-6)


def test_a_document_of_exactly_the_longest_window_is_used(fake_model):
    assert measure(fake_model(), docs={"text": documents(64, 1)}).cell("text", "plain", 64).n_tokens == 63


def test_frequencies_are_exchanged_and_the_own_come_back_even_after_an_error(fake_model):
    model = fake_model()
    own = model.position.settings
    result = measure(model)
    assert model.position.settings is own
    for window in result.windows:
        plain, other = (result.cell("all", name, window) for name in ("plain", "other"))
        assert math.log(other.perplexity) - math.log(plain.perplexity) == pytest.approx(0.5, rel=1e-5)
    model.nll = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        measure(model)
    assert model.position.settings is own


def test_windows_beyond_every_document_are_left_out(fake_model):
    assert measure(fake_model(), windows=(16, 32, 1024)).windows == (16, 32)
    with pytest.raises(ValueError, match="no held-out document"):
        measure(fake_model(), docs={"text": documents(10)})


def test_bits_per_byte_from_the_scored_text(fake_model):
    result = measure(fake_model(), n_bytes=lambda tokens: 4 * len(tokens))
    cell = result.cell("all", "plain", 16)
    assert cell.n_bytes == 4 * cell.n_tokens
    assert cell.bits_per_byte == pytest.approx(cell.bits_per_token / 4)


def test_survives_json(fake_model):
    result = measure(fake_model())
    assert Extrapolation.from_json(decode(json.loads(json.dumps(encode(result.to_json()), allow_nan=False)))) == result
