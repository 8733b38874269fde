import json
import math

import numpy as np
import pytest

from coca_train.evaluation.extrapolation.measure import Absent, Extrapolation, NothingToScore, extrapolate
from coca_train.runtime.durable import decode, encode


def documents(n_tokens, count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, n_tokens + i) for i in range(count)]


@pytest.fixture
def measure(variant):
    def measure(model, docs=None, windows=(16, 32, 64), variants=None, **options):
        return extrapolate(
            model,
            docs if docs is not None else {"text": documents(65), "code": documents(70, 2, 1)},
            variants or {"plain": variant(), "other": variant(boost=0.5)},
            run="r",
            windows=windows,
            training_window=16,
            micro_batch_tokens=128,
            **options,
        )

    return measure


def test_every_window_scores_the_same_tokens(fake_model, measure):
    result = measure(fake_model())
    assert {c.result.n_tokens for c in result.cells if c.source == "text"} == {3 * 64}
    assert {c.result.n_tokens for c in result.cells if c.source == "all"} == {5 * 64}
    assert result.document_tokens == 65
    assert result.stride == 16
    assert len(result.cells) == 3 * 2 * 3
    assert result.sources == ("text", "code", "all")
    assert result.absent == ()


def test_documents_are_cut_and_dynamic_frequencies_see_the_window(fake_model, measure, variant):
    doc = documents(200, 1)[0]
    result = measure(fake_model(), {"text": [doc]}, windows=(16, 64), variants={"plain": variant()})
    nll = 0.0
    for target in range(1, 65):  # one window of 64: positions 0 .. 63, l = 64
        nll += abs(doc[:target].mean() - doc[target]) / 100 + 1 / target + 64 / 1000
    assert result.find("text", "plain", 64).nll_sum == pytest.approx(nll, rel=1e-6)
    nll = 0.0
    for target in range(1, 65):  # windows of 16 side by side
        begin = (target - 1) // 16 * 16
        nll += abs(doc[begin:target].mean() - doc[target]) / 100 + 1 / (target - begin) + 16 / 1000
    assert result.find("text", "plain", 16).nll_sum == pytest.approx(nll, rel=1e-6)


def test_a_document_of_exactly_the_longest_window_is_used(fake_model, measure):
    assert measure(fake_model(), docs={"text": documents(64, 1)}).find("text", "plain", 64).n_tokens == 63


def test_variants_are_exchanged_and_the_own_comes_back_even_after_an_error(fake_model, measure, variant):
    model = fake_model()
    variants = {"plain": variant(), "other": variant(boost=0.5), "segments": variant(visibility="segments", length=16)}

    def is_own():
        return (model.position.settings, model.visibility.settings.name) == (variants["plain"].position, "causal")

    result = measure(model, variants=variants)
    assert result.variants == ("plain", "other", "segments")
    assert is_own()
    for window in result.windows:
        losses = {name: result.find("all", name, window).loss for name in variants}
        assert losses["other"] - losses["plain"] == pytest.approx(0.5, rel=1e-5)
        assert losses["segments"] - losses["plain"] == pytest.approx(0.25, rel=1e-5)
    model.nll = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        measure(model, variants=variants)
    assert is_own()


def test_windows_beyond_every_document_are_left_out(fake_model, measure):
    assert measure(fake_model(), windows=(16, 32, 1024)).windows == (16, 32)
    with pytest.raises(NothingToScore, match="no held-out document"):
        measure(fake_model(), docs={"text": documents(10)})
    with pytest.raises(NothingToScore, match="no held-out document"):
        measure(fake_model(), docs={})


def test_windows_beyond_the_positions_of_a_scheme_are_absent_but_for_a_visibility_that_starts_anew(
    fake_model, measure, variant
):
    variants = {
        "plain": variant(),
        "sliding_window": variant(visibility="sliding_window", window=16),
        "segments": variant(visibility="segments", length=16),
    }
    result = measure(fake_model(limit=16), variants=variants)
    scored = {(c.variant, c.window) for c in result.cells}
    assert scored == {("plain", 16), ("sliding_window", 16), *(("segments", w) for w in (16, 32, 64))}
    assert {(a.variant, a.window) for a in result.absent} == {
        (name, window) for name in ("plain", "sliding_window") for window in (32, 64)
    }
    assert "fake has 16 positions" in result.absent[0].reason
    assert result.find("all", "plain", 32) is None
    assert {(p.variant, p.window) for p in result.positions} == {
        ("plain", 16),
        ("sliding_window", 16),
        ("segments", 16),
        ("segments", 64),
    }


def test_a_limit_that_a_window_just_reaches_is_no_limit(fake_model, measure):
    assert measure(fake_model(limit=64)).absent == ()
    result = measure(fake_model(limit=63))
    assert {a.window for a in result.absent} == {64}
    assert {p.window for p in result.positions} == {16, 32}  # the longest that is scored


def test_an_impossible_variant_is_left_out_with_its_reason(fake_model, measure, variant):
    variants = {"plain": variant(), "rerope": variant(problem="it knows no distances")}
    result = measure(fake_model(), variants=variants)
    assert result.variants == ("plain",)
    assert result.absent == (Absent(variant="rerope", window=None, reason="it knows no distances"),)


def test_nothing_to_score_is_said_and_the_own_variant_leads_even_without_a_cell(fake_model, measure, variant):
    with pytest.raises(NothingToScore, match="fake has 8 positions"):
        measure(fake_model(limit=8))
    variants = {"plain": variant(), "segments": variant(visibility="segments", length=8)}
    result = measure(fake_model(limit=8), variants=variants)
    assert result.variants == ("plain", "segments")
    assert not result.scored("plain")


def test_progress_counts_what_is_read(fake_model, measure, monkeypatch):
    from coca_train.evaluation.extrapolation import measure as extrapolation

    told = []

    class Progress:
        def __init__(self, total):
            told.append(-total)

        def add(self, n_tokens):
            told.append(n_tokens)

        def close(self):
            pass

    monkeypatch.setattr(extrapolation, "_Progress", Progress)
    measure(fake_model(limit=32))
    assert told[0] < 0
    assert sum(told) == 0


def test_loss_by_position_of_the_pooled_text_at_the_training_and_the_longest_window(fake_model, measure):
    result = measure(fake_model())
    assert [(p.source, p.variant, p.window) for p in result.positions] == [
        ("all", name, window) for name in ("plain", "other") for window in (16, 64)
    ]
    longest = result.positions[1]
    assert sum(longest.n_tokens) == 5 * 64
    assert sum(result.positions[0].n_tokens) == 5 * 16  # the first window of every document
    total = sum(loss * n for loss, n in zip(longest.loss, longest.n_tokens, strict=True))
    assert total == pytest.approx(result.find("all", "plain", 64).nll_sum)  # one window a document


def test_bits_per_byte_from_the_scored_text(fake_model, measure):
    result = measure(fake_model(), n_bytes=lambda tokens: 4 * len(tokens))
    cell = result.find("all", "plain", 16)
    assert cell.n_bytes == 4 * cell.n_tokens
    assert cell.bits_per_byte == pytest.approx(cell.bits_per_token / 4)
    assert math.isclose(cell.perplexity, math.exp(cell.loss))


def test_survives_json(fake_model, measure):
    result = measure(fake_model(limit=32))
    assert result.absent
    assert Extrapolation.from_json(decode(json.loads(json.dumps(encode(result.to_json()), allow_nan=False)))) == result
