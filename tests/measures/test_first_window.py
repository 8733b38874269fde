"""One window from a document's beginning, against a plain loop over single predictions."""

import math
from itertools import pairwise

import numpy as np
import pytest

from coca_train.evaluation.measures.windows import bin_ends
from coca_train.evaluation.suites._documents import first_window_nll
from coca_train.evaluation.suites.position_loss import by_octave, first_windows, reduced


def document(n, seed):
    return np.random.default_rng(seed).integers(0, 50, n)


def plain_loop(doc, length):
    """NLL of each prediction of the fake model, straight from its definition; l = length."""
    return [abs(doc[:c].mean() - doc[c]) / 100 + 1 / c + length / 1000 for c in range(1, length + 1)]


def test_every_context_once_with_frequencies_at_the_length_read(fake_model):
    docs = [document(40, 1), document(25, 2), document(33, 3)]
    nll_BT = first_window_nll(fake_model(), docs, 24)
    np.testing.assert_allclose(nll_BT, [plain_loop(doc, 24) for doc in docs], rtol=1e-5)


@pytest.mark.parametrize(("length", "block"), [(24, 8), (24, 24), (6, 8)])
def test_means_over_documents_by_position_and_of_the_last_block(fake_model, length, block):
    docs = [document(40, 1), document(40, 2)]
    kept = [reduced(nll_T, block) for nll_T in first_window_nll(fake_model(), docs, length)]
    summary = first_windows(kept, length, block)
    expected = np.mean([plain_loop(doc, length) for doc in docs], 0)
    assert summary.perplexity == pytest.approx(math.exp(expected[-block:].mean()), rel=1e-5)
    assert summary.block == min(block, length)
    assert summary.n_documents == 2
    assert summary.ci_low <= summary.perplexity <= summary.ci_high
    begin = 0
    for end, loss in zip(summary.ends, summary.loss, strict=True):
        assert loss == pytest.approx(expected[begin:end].mean(), rel=1e-5)
        begin = end
    assert begin == length
    each = [plain_loop(doc, length) for doc in docs]
    assert summary.last_by_document == pytest.approx([sum(nll[-block:]) for nll in each], rel=1e-5)
    octaves = [[sum(nll[o.first - 1 : o.last]) for o in summary.octaves] for nll in each]
    np.testing.assert_allclose(summary.octaves_by_document, octaves, rtol=1e-5)


def test_octaves_by_hand():
    ends = np.array((1, 2, 3, 4, 5, 6, 7, 8, 10, 11))
    loss, widths = np.array((1.0, 2.0, 3.0, 5.0, 1.0, 1.0, 1.0, 5.0, 4.0, 1.0)), np.diff(ends, prepend=0)
    # Two documents whose mean that is, of which one loses 1 nat more at each prediction than the other.
    bins_DK2 = np.stack([np.stack((widths * (loss + off), widths), 1) for off in (-0.5, 0.5)])
    octaves, octaves_DO2 = by_octave(ends, bins_DK2)
    assert [each[:2] for each in octaves] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 11)]
    assert [each.loss for each in octaves] == pytest.approx([1.0, 2.0, 4.0, 2.0, 3.0])
    assert [each.low for each in octaves] == pytest.approx([0.5, 1.5, 3.5, 1.5, 2.5])
    assert [each.high for each in octaves] == pytest.approx([1.5, 2.5, 4.5, 2.5, 3.5])
    assert {each.low for each in by_octave(ends, bins_DK2[:1])[0]} == {None}
    # Of each document: what the octaves are the means of.
    expected_DO = np.array([each.loss for each in octaves]) + np.array([[-0.5], [0.5]])
    np.testing.assert_allclose(octaves_DO2[..., 0] / octaves_DO2[..., 1], expected_DO)


def test_octaves_end_where_the_bins_of_windows_do():
    for length in (1, 2, 3, 7, 8, 9, 24, 100, 128):
        ends = bin_ends(length)
        octaves, _ = by_octave(ends, np.ones((2, len(ends), 2)))
        assert octaves[0].first == 1 and octaves[-1].last == length
        assert all(one.last + 1 == two.first for one, two in pairwise(octaves))
        assert all(each.last <= 2 ** (each.first - 1).bit_length() for each in octaves[1:])


def test_the_interval_of_each_bin_is_that_of_its_own_losses():
    """Against an independent computation: the percentiles of means over documents drawn with replacement."""
    kept = np.random.default_rng(3).normal(4.0, 1.0, (9, 1 + len(bin_ends(8))))
    summary = first_windows(kept, 8, 4, seed=5)
    draws = np.random.default_rng(5).integers(0, 9, (1000, 9))
    widths = np.diff(bin_ends(8), prepend=0)
    for k, width in enumerate(widths):
        means = [np.mean([kept[i, k + 1] / width for i in draw]) for draw in draws]
        assert (summary.low[k], summary.high[k]) == pytest.approx(tuple(np.percentile(means, (2.5, 97.5))))
