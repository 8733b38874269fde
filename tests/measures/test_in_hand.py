import json
import math

import numpy as np
import pytest

from coca_train.evaluation.grid import Progress
from coca_train.evaluation.results import Evaluation
from coca_train.runtime.durable import decode, encode
from coca_train.runtime.errors import DataError
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


def test_every_window_scores_the_same_tokens(fake_model, measure):
    grid = measure(fake_model())
    for window in (16, 32, 64):
        assert [grid.result(s, "plain", window).n_tokens for s in ("text", "code", "all")] == [192, 128, 320]
    assert {cell.result["stride"] for cell in grid.cells.values()} == {16}
    assert {tuple(cell.result["sources"]) for cell in grid.cells.values()} == {("text", "code", "all")}
    assert len(grid.cells) == 3 * 2
    assert not grid.reasons()


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


def test_a_document_of_exactly_the_longest_window_is_used(fake_model, measure):
    assert measure(fake_model(), docs={"text": documents(64, 1)}).result("text", "plain", 64).n_tokens == 63


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


def test_windows_beyond_every_document_have_a_reason(fake_model, measure):
    grid = measure(fake_model(), windows=(16, 32, 1024))
    assert set(grid.reasons().items()) == {
        ((name, 1024), "no document has 1,024 tokens") for name in ("plain", "other")
    }
    for docs in ({"text": documents(10)}, {}):
        with pytest.raises(DataError, match="E-EVAL-05 text: no document has 16 tokens"):
            measure(fake_model(), docs=docs)


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
    assert set(reasons.values()) == {"fake has 16 positions, and these windows need more"}
    assert grid.result("all", "plain", 32) is None
    assert len(grid.result("all", "plain", 16).ends) < len(grid.result("all", "segments", 64).ends)


def test_a_limit_that_a_window_just_reaches_is_no_limit(fake_model, measure):
    assert not measure(fake_model(limit=64)).reasons()
    assert {window for _, window in measure(fake_model(limit=63)).reasons()} == {64}


def test_an_impossible_variant_has_its_reason_at_every_window(fake_model, measure, variant):
    grid = measure(fake_model(), variants={"plain": variant(), "rerope": variant(problem="it knows no distances")})
    assert grid.reasons() == {("rerope", window): "it knows no distances" for window in (16, 32, 64)}


def test_where_nothing_can_be_scored_every_cell_says_why(fake_model, measure, variant):
    reasons = measure(fake_model(limit=8)).reasons()
    assert len(reasons) == 6
    assert all("fake has 8 positions" in reason for reason in reasons.values())
    grid = measure(
        fake_model(limit=8), variants={"plain": variant(), "segments": variant(attention_pattern="segments", length=8)}
    )
    assert {name for name, _ in grid.reasons()} == {"plain"}


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
    # windows of 16 every 2 tokens, those side by side among them, windows of 32 every 16 tokens; of both, and of 8, the
    # training window's half, whole windows and their nearest five eighths side by side: of 5 documents, two variants
    assert progress["expected"] == progress["cells"] == 2 * 5 * (25 * 16 + 3 * 32 + 4 * 10 + 2 * 20 + 64 + 8 * 5)
    assert len(progress["shares"]) == 4
    assert all(shares == sorted(shares) and shares[-1] == 1.0 for shares in progress["shares"])


def test_loss_by_position_is_of_the_first_window_of_every_document(fake_model, measure):
    grid = measure(fake_model())
    whole = grid.result("all", "plain", 64)
    widths = np.diff(whole.ends, prepend=0)
    assert whole.ends[-1] == 64
    assert 5 * (widths * whole.loss_by_position).sum() == pytest.approx(whole.nll_sum)  # one window a document
    assert grid.result("all", "plain", 16).ends[-1] == 16


def test_bits_per_byte_from_the_scored_text(fake_model, measure):
    score = measure(fake_model()).result("all", "plain", 16)
    assert score.n_bytes == 4 * score.n_tokens
    assert score.bits_per_byte == pytest.approx(score.bits_per_token / 4)
    assert math.isclose(score.perplexity, math.exp(score.nll_sum / score.n_tokens))


def test_survives_json(fake_model, measure):
    cells = tuple(measure(fake_model(limit=32), docs={"text": documents(64, 1)}).cells.values())
    whole = Evaluation(
        suite="perplexity", name="e", settings={}, subjects=(), points=(16, 32, 64), cells=cells, facts=(("a", "b"),),
        command="",
    )  # fmt: skip
    again = Evaluation.from_json(decode(json.loads(json.dumps(encode(whole.to_json()), allow_nan=False))))
    assert [(cell.variant, cell.point, cell.reason) for cell in again.cells] == [
        (cell.variant, cell.point, cell.reason) for cell in cells
    ]
    assert repr(again.cells[0].result).replace("[", "(") == repr(cells[0].result).replace("[", "(")
    assert (again.points, again.facts) == (whole.points, whole.facts)
