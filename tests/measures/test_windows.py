"""Windows and what they score; one pass for several windows gives what measuring each gives, and only where it may."""

from types import SimpleNamespace

import numpy as np
import pytest

from coca_train.evaluation.measures.perplexity import score_share
from coca_train.evaluation.measures.windows import (
    Pass,
    Scored,
    Windowing,
    batches,
    plan_passes,
    same_at,
    sliding_windows,
)
from coca_train.evaluation.suites import perplexity as suite
from tests.models.conftest import LLAMA, build

WINDOWS = (8, 16, 24)
DYNAMIC = {"name": "dynamic_ntk", "theta": 10000.0, "alpha": 1.0, "original_seq_len": 8}
YARN = {
    "name": "yarn",
    "theta": 10000.0,
    "factor": 4.0,
    "original_seq_len": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "convention": "paper",
}


def rope(rope_scaling):
    return {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": rope_scaling}


def documents(window):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 101, n)[: window + 1] for n in (40, 25, 24, 30)]  # of 24: one prediction fewer


@pytest.mark.parametrize("stride", [0, 17])
def test_a_stride_that_would_leave_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match=f"stride {stride} .* 16"):
        list(sliding_windows(64, 16, stride))


def test_windows_tile_the_predictions():
    for n in range(1, 70):
        for window, stride in [(16, 16), (16, 4), (7, 3), (64, 1)]:
            windows = list(sliding_windows(n, window, stride))
            covered = [t for w in windows for t in range(w.scored, w.stop)]
            assert covered == list(range(n))
            assert all(w.start <= w.scored < w.stop <= w.start + window for w in windows)


def test_windows_that_begin_together_are_one_pass():
    """By hand: 20 predictions in windows of 4 and 8, stride 4, and of 8 cut to 10."""
    plan = plan_passes([20], [Windowing(4, 4), Windowing(8, 4), Windowing(8, 8, cut=10)])
    assert plan == [
        Pass(0, 0, 8, (Scored(0, 0, 4), Scored(1, 0, 8), Scored(2, 0, 8))),
        Pass(0, 4, 12, (Scored(0, 0, 4), Scored(1, 4, 8))),
        Pass(0, 8, 16, (Scored(0, 0, 4), Scored(1, 4, 8), Scored(2, 0, 2))),
        Pass(0, 12, 20, (Scored(0, 0, 4), Scored(1, 4, 8))),
        Pass(0, 16, 20, (Scored(0, 0, 4),)),
    ]


def test_batches_are_of_one_shape_and_within_the_micro_batch():
    work = plan_passes([20, 20, 17], [Windowing(4, 4), Windowing(8, 4)])
    groups = batches(work, 16)
    assert sorted(each for batch in groups for each in batch) == sorted(work)
    for batch in groups:
        assert len({(each.length, each.parts) for each in batch}) == 1
        assert len(batch) == 1 or len(batch) * batch[0].length <= 16
    lengths = [batch[0].length for batch in groups]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_rows_together_are_the_rows_alone(fake_model, seed):
    rng = np.random.default_rng(seed)
    docs = [rng.integers(0, 50, n) for n in rng.integers(2, 90, rng.integers(1, 4))]
    rows = []
    for window in rng.integers(1, 40, rng.integers(1, 5)).tolist():
        rows.append(
            Windowing(
                window, int(rng.integers(1, window + 1)), int(rng.integers(1, 90)) if rng.random() < 0.5 else None
            )
        )

    class Timeless(fake_model):
        """Blind to the length of the window."""

        def hidden(self, *arguments, **options):
            return super().hidden(*arguments, **{**options, "length": 1})

    together = score_share(Timeless(), docs, rows, 100)
    for row, joint in zip(rows, together, strict=True):
        (alone,) = score_share(Timeless(), [d[: row.cut and row.cut + 1] for d in docs], [row._replace(cut=None)], 100)
        np.testing.assert_allclose(joint.documents, alone.documents, rtol=1e-6)
        np.testing.assert_allclose(joint.positions, alone.positions, rtol=1e-6)


@pytest.mark.parametrize("scheme", [rope(YARN), "coca", "nope", "t5", "alibi_plain"])
@pytest.mark.parametrize("cut", [True, False])
def test_rows_together_are_the_rows_alone_on_a_network(scheme, cut):
    model = build(LLAMA, scheme).double().eval()
    rows = [Windowing(window, 8, window if cut else None) for window in WINDOWS]
    for row, joint in zip(rows, score_share(model, documents(99), rows, 48), strict=True):
        assert same_at(model, WINDOWS[-1], row.window)
        (alone,) = score_share(model, documents(row.cut or 99), [Windowing(row.window, 8)], 48)
        np.testing.assert_allclose(joint.documents, alone.documents, rtol=1e-6)
        np.testing.assert_allclose(joint.positions, alone.positions, rtol=1e-6)


def test_frequencies_that_follow_the_length_are_told_apart():
    model = build(LLAMA, rope(DYNAMIC)).eval()
    assert not same_at(model, 24, 16)
    assert same_at(model, 8, 4)  # within the training window they do not move
    segments = build(LLAMA, rope(DYNAMIC), {"name": "segments", "length": 16}).eval()
    assert same_at(segments, 24, 16)  # no sequence is longer than a segment
    assert not same_at(segments, 24, 8)


USUAL = {"weighting": "tokens", "window_counts": "predictions", "begin_windows": False, "last": None}


@pytest.fixture
def measured():
    """(windows in turn, ...) -> results of the suite by window, and forward passes by window; on one model."""

    def results_of(rope_scaling, document_tokens, windows=WINDOWS[::-1], forget=False, short_of_memory=()):
        model = build(LLAMA, rope(rope_scaling)).double().eval()
        settings = SimpleNamespace(document_tokens=document_tokens, bootstrap_resamples=2, **USUAL)
        texts = SimpleNamespace(documents={"a": documents(99), "b": documents(99)[:1]}, n_bytes=len)
        material = suite.Material(settings, texts, WINDOWS, 8, 8, 0)  # type: ignore[arg-type]
        shares = []
        setup = SimpleNamespace(micro_batch_tokens=48, progress=shares.append)
        counts, results, n = {}, {}, []
        model.final_norm.register_forward_hook(lambda *_: n.append(1))
        for window in windows:
            n.clear()
            if forget:
                material.shared.clear()
            part = suite.Evaluator(settings).measure(SimpleNamespace(model=model), window, material, setup)  # type: ignore[arg-type]
            results[window], counts[window] = part["0"]["own"], len(n)
            if window not in short_of_memory:
                suite.Evaluator(settings).combine(window, material, part)  # type: ignore[arg-type]
        assert shares[-1] == 1.0
        assert max(shares) == 1.0
        return results, counts

    return results_of


@pytest.mark.parametrize("document_tokens", ["longest", "window", "whole"])
def test_a_window_is_measured_alike_whatever_came_before(measured, document_tokens):
    results, counts = measured(YARN, document_tokens)
    alone, _ = measured(YARN, document_tokens, forget=True)
    assert min(counts.values()) > 0
    for window in WINDOWS:
        for source in ("a", "b"):
            for mine, theirs in zip(results[window][source], alone[window][source], strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_a_longer_window_is_not_taken_from_a_shorter_one(measured):
    results, counts = measured(YARN, "longest", windows=WINDOWS)
    assert min(counts.values()) > 0
    for window in WINDOWS:
        assert np.sum(results[window]["a"][0], axis=(0, 1))[1] == sum(min(24, len(d) - 1) for d in documents(99))


def test_nothing_is_taken_from_a_cell_that_failed_on_another_rank(measured):
    """The windows of the training length, which both longer ones are compared with, are read once, or again."""
    _, usual = measured(YARN, "longest")
    _, counts = measured(YARN, "longest", short_of_memory=(24,))
    assert counts[16] > usual[16] and counts[8] == usual[8]


def test_the_work_of_a_cell_is_what_it_reads():
    """Of three windows and documents of 39, 24, 23 and 29 predictions, and again 39: by hand."""

    def work(rope_scaling, points):
        model = build(LLAMA, rope(rope_scaling)).eval()
        settings = SimpleNamespace(document_tokens="window", **USUAL)
        texts = SimpleNamespace(documents={"a": documents(99), "b": documents(99)[:1]})
        material = suite.Material(settings, texts, WINDOWS, 8, 8, 0)  # type: ignore[arg-type]
        return suite.Evaluator(settings).work(SimpleNamespace(model=model), points, material)  # type: ignore[arg-type]

    # The ends of windows that are full, once more with the nearest five eighths of them: 15 of 24, 10 of 16, 5 of 8.
    longest, ends = 24 + 24 + 23 + 24 + 24, {24: 4 * 15, 16: 5 * 10, 8: 5 * 5}
    assert work(YARN, [24, 16, 8]) == [longest + ends[24], 5 * 16 + ends[16], 5 * 8 + ends[8]]
    assert work(YARN, [16, 8]) == [5 * 16 + ends[16], 5 * 8 + ends[8]]
    assert work(YARN, [8]) == [5 * 8 + ends[8]]
    assert work(DYNAMIC, [24, 16, 8]) == [longest + ends[24], 5 * 16 + ends[16], 5 * 8 + ends[8]]
