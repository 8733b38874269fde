"""One window from a document's beginning, against a plain loop over single predictions."""

import math

import numpy as np
import pytest

from coca_train.evaluation.measures.first_window import by_octave, first_window_nll, first_windows, reduced


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


def test_octaves_by_hand():
    ends, loss = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11), (1.0, 2.0, 3.0, 5.0, 1.0, 1.0, 1.0, 5.0, 4.0, 1.0)
    means = by_octave(ends, loss)
    assert list(means) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 11)]
    assert list(means.values()) == pytest.approx([1.0, 2.0, 4.0, 2.0, 3.0])
