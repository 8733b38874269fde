"""Loss by position: which predictions count, in which bin, against a plain loop over single predictions."""

import numpy as np
import pytest

from coca_train.evaluation.measures.perplexity import intervals
from coca_train.evaluation.measures.windows import bin_ends, bin_middles, means, sum_bins
from tests.measures.scoring import score_documents


def document(n, seed=0):
    return np.random.default_rng(seed).integers(0, 50, n)


def plain_loop(docs, window):
    """Sums of NLL and predictions at each position, straight from the definition: first windows only."""
    sums = np.zeros((window, 2))
    for doc in docs:
        for position in range(1, min(window, len(doc) - 1) + 1):
            nll = abs(doc[:position].mean() - doc[position]) / 100 + 1 / position + window / 1000
            sums[position - 1] += nll, 1
    return sums


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (32, 8), (64, 16), (80, 16)])
def test_equals_a_plain_loop(fake_model, window, stride):
    docs = [document(65, 1), document(65, 2), document(40, 3)]
    bins = score_documents(fake_model(), docs, window=window, stride=stride, micro_batch_tokens=100).positions
    by_position, ends, begin = plain_loop(docs, window), bin_ends(window), 0
    assert len(bins) == len(ends)
    for end, sums in zip(ends, bins, strict=True):
        np.testing.assert_allclose(sums, by_position[begin:end].sum(0), rtol=1e-6)
        begin = end


def test_each_document_has_its_own_sums_and_the_mean_an_interval_over_them(fake_model):
    docs = [document(65, 1), document(65, 2), document(40, 3)]
    scores = score_documents(fake_model(), docs, window=64, stride=16, micro_batch_tokens=100)
    ends = bin_ends(64)
    for doc, bins in zip(docs, scores.bins, strict=True):
        by_position = plain_loop([doc], 64)
        expected = [by_position[begin:end].sum(0) for begin, end in zip([0, *ends], ends, strict=False)]
        np.testing.assert_allclose(bins, expected, rtol=1e-6)
    low, high = intervals(scores.bins, seed=4)
    draws = np.random.default_rng(4).integers(0, 3, (1000, 3))
    nll, count = scores.bins[:, 9].T
    ratios = nll[draws].sum(1) / count[draws].sum(1)
    assert (low[9], high[9]) == pytest.approx(tuple(np.percentile(ratios, (2.5, 97.5))))
    # The last bin is of two documents: draws of the short one alone say nothing of it.
    kept = scores.bins[:, -1]
    sums = kept[draws].sum(1)
    told = sums[:, 0][sums[:, 1] > 0] / sums[:, 1][sums[:, 1] > 0]
    assert len(told) < 1000
    assert (low[-1], high[-1]) == pytest.approx(tuple(np.percentile(told, (2.5, 97.5))))
    assert intervals(scores.bins[:1]) == ([None] * len(ends), [None] * len(ends))


def test_bins_tile_the_window_in_quarter_octaves():
    assert bin_ends(20).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 20]
    for window in range(1, 300):
        ends = bin_ends(window)
        assert ends[-1] == window
        assert (np.diff(ends) > 0).all()
        shorter = bin_ends(max(1, window // 2))
        assert shorter[:-1].tolist() == ends[: len(shorter) - 1].tolist()  # bins do not depend on the window
    assert len(bin_ends(32768)) <= 64


def test_a_loss_by_position_is_means_drawn_in_the_middle_of_their_bins():
    sums = sum_bins(np.stack([np.arange(1.0, 13), np.full(12, 2.0)], 1))
    ends = bin_ends(12).tolist()
    assert ends == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert sums[:, 1].tolist() == [*[2] * 8, 4, 2, 2]
    assert means(sums) == pytest.approx([*(n / 2 for n in range(1, 9)), 19 / 4, 11 / 2, 12 / 2])
    assert bin_middles(ends)[-3:] == pytest.approx((90**0.5, 11, 12))
    assert np.isnan(means(np.zeros((1, 2)))).all()
