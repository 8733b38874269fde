import numpy as np
import pytest

from coca_train.evaluation.grid import Progress
from tests.measures.in_hand import in_hand


def documents(n_tokens, count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, n_tokens + i) for i in range(count)]


@pytest.fixture
def measure(variant):
    def measure(model, docs=None, windows=(16, 32, 64), variants=None, **options):
        return in_hand(
            model,
            docs if docs is not None else {"text": documents(65), "code": documents(70, 2, 1)},
            variants or {"plain": variant(), "other": variant(boost=0.5)},
            windows,
            16,
            **options,
        )

    return measure


def test_documents_are_cut_and_dynamic_frequencies_see_the_window(fake_model, measure, variant):
    doc = documents(200, 1)[0]
    grid = measure(fake_model(), {"text": [doc]}, windows=(16, 64), variants={"plain": variant()})
    nll = 0.0
    for target in range(1, 65):  # one window of 64: positions 0 .. 63, l = 64
        nll += abs(doc[:target].mean() - doc[target]) / 100 + 1 / target + 64 / 1000
    assert grid.result("text", "plain", 64).nll_sum == pytest.approx(nll, rel=1e-6)
    nll = 0.0
    for target in range(1, 65):  # windows of 16 side by side
        begin = (target - 1) // 16 * 16
        nll += abs(doc[begin:target].mean() - doc[target]) / 100 + 1 / (target - begin) + 16 / 1000
    assert grid.result("text", "plain", 16).nll_sum == pytest.approx(nll, rel=1e-6)


def test_variants_are_exchanged_and_the_own_comes_back_even_after_an_error(fake_model, measure, variant):
    model = fake_model()
    variants = {
        "plain": variant(),
        "other": variant(boost=0.5),
        "segments": variant(attention_pattern="segments", length=16),
    }
    own = model.position, model.attention_pattern
    grid = measure(model, variants=variants)
    assert (model.position, model.attention_pattern) == own
    for window in (16, 32, 64):
        results = [grid.result("all", name, window) for name in variants]
        plain, other, segments = (result.nll_sum / result.n_tokens for result in results)
        assert other - plain == pytest.approx(0.5, rel=1e-5)
        # Segments of 16 are read at a length of 16, which the fake model's NLL has as thousandths.
        assert segments - plain == pytest.approx(0.25 - (window - 16) / 1000, rel=1e-5)
    model.nll = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        measure(model, variants=variants)
    assert (model.position, model.attention_pattern) == own


def test_windows_beyond_the_positions_of_a_scheme_are_absent_but_for_a_attention_pattern_that_starts_anew(
    fake_model, measure, variant
):
    variants = {
        "plain": variant(),
        "sliding_window": variant(attention_pattern="sliding_window", window=16),
        "segments": variant(attention_pattern="segments", length=16),
    }
    grid = measure(fake_model(limit=16), variants=variants)
    reasons = grid.reasons()
    assert set(reasons) == {(name, window) for name in ("plain", "sliding_window") for window in (32, 64)}
    assert all(reason.startswith("fake has 16 positions") for reason in reasons.values())
    assert grid.result("all", "plain", 32) is None
    assert len(grid.result("all", "plain", 16).ends) < len(grid.result("all", "segments", 64).ends)


def test_a_limit_that_a_window_just_reaches_is_no_limit(fake_model, measure):
    assert not measure(fake_model(limit=64)).reasons()
    assert {window for _, window in measure(fake_model(limit=63)).reasons()} == {64}


def test_progress_counts_what_is_read(fake_model, measure):
    progress = {"expected": 0.0, "cells": 0.0, "shares": []}

    class Recorder(Progress):
        def expect(self, work, n_models):
            progress["expected"] += work

        def cell(self, words, work):
            progress["cells"] += work
            progress["shares"].append([])

        def share(self, share):
            progress["shares"][-1].append(share)

    measure(fake_model(limit=32), progress=Recorder(shown=False))
    # windows of 16 every 2 tokens and side by side, windows of 32 every 16 tokens; of both, and of 8, the training
    # window's half, whole windows and their nearest five eighths side by side: of 5 documents, two variants
    each = 25 * 16 + 4 * 16 + 3 * 32 + 4 * 10 + 2 * 20 + 64 + 8 * 5
    assert progress["expected"] == progress["cells"] == 2 * 5 * each
    assert len(progress["shares"]) == 4
    assert all(shares == sorted(shares) and shares[-1] == 1.0 for shares in progress["shares"])
