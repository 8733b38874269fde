"""One window from a document's beginning, against a plain loop over single predictions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from coca_train.evaluation.suites._documents import first_window_nll
from coca_train.evaluation.suites.position_loss import first_windows, reduce_nll


def document(n, seed):
    return np.random.default_rng(seed).integers(0, 50, n)


def plain_loop(doc, length):
    """NLL of each prediction of the fake model, straight from its definition; l = length."""
    return [abs(doc[:c].mean() - doc[c]) / 100 + 1 / c + length / 1000 for c in range(1, length + 1)]


@pytest.mark.parametrize(("length", "block"), [(24, 8), (24, 24), (6, 8)])
def test_means_over_documents_by_position_and_of_the_last_block(fake_model, length, block):
    docs = [document(40, 1), document(40, 2)]
    kept = [reduce_nll(nll_T, block) for nll_T in first_window_nll(fake_model(), docs, length)]
    summary = SimpleNamespace(**first_windows(kept, length, block))
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
