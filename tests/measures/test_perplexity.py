import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coca_train.data.batch import Batch
from coca_train.evaluation.measures import perplexity
from coca_train.evaluation.measures.perplexity import score_share, summarise, validation_loss
from coca_train.evaluation.measures.windows import Windowing
from tests.measures.scoring import score_documents


def document(n, seed=0):
    return np.random.default_rng(seed).integers(0, 50, n)


def plain_loop(doc, window, stride):
    """Independent of the package: one prediction at a time, straight from the written definition."""
    total, scored, begin = 0.0, set(), 0
    while max(scored, default=0) < len(doc) - 1:
        for target in range(begin + 1, min(begin + window, len(doc) - 1) + 1):
            if target not in scored:
                context = doc[begin:target]
                position = target - 1 - begin
                nll = abs(context.mean() - doc[target]) / 100 + 1 / (1 + position) + window / 1000
                total += nll
                scored.add(target)
        begin += stride
    assert scored == set(range(1, len(doc)))
    return total


@pytest.mark.parametrize(
    ("n", "window", "stride"), [(65, 16, 16), (65, 16, 4), (64, 16, 5), (40, 64, 16), (2, 8, 8), (33, 32, 1)]
)
def test_equals_a_plain_loop(fake_model, n, window, stride):
    docs = [document(n, 1), document(n, 2), document(max(2, n // 2), 3)]
    sums = score_documents(fake_model(), docs, window=window, stride=stride, micro_batch_tokens=64).documents
    np.testing.assert_allclose(sums[:, 0], [plain_loop(d, window, stride) for d in docs], rtol=1e-6)
    assert sums[:, 1].tolist() == [len(d) - 1 for d in docs]


def test_batches_hold_up_to_the_micro_batch_and_do_not_change_the_result(fake_model):
    docs = [document(65, seed) for seed in range(5)]
    small, large = fake_model(), fake_model()
    one = score_documents(small, docs, window=16, stride=16, micro_batch_tokens=1)
    many = score_documents(large, docs, window=16, stride=16, micro_batch_tokens=48)
    np.testing.assert_allclose(one.documents, many.documents, rtol=1e-7)
    np.testing.assert_allclose(one.positions, many.positions, rtol=1e-7)
    assert {shape[0] for shape in small.shapes} == {1}
    assert max(shape[0] for shape in large.shapes) == 3


def test_only_predictions_not_made_before_go_through_the_head(fake_model):
    model, seen = fake_model(), []
    original = model.nll
    model.nll = lambda x, t: seen.append(t.shape[1]) or original(x, t)  # type: ignore[method-assign]
    score_documents(model, [document(65)], window=32, stride=8, micro_batch_tokens=32)
    assert seen == [32, 8, 8, 8, 8]


def test_training_mode_comes_back(fake_model):
    model = fake_model().train()
    score_documents(model, [document(10)], window=8, stride=8, micro_batch_tokens=8)
    assert model.training


def test_summary_numbers():
    summary = summarise(np.array([[20.0, 10], [10.0, 10]]), n_bytes=60, seed=3)
    result = SimpleNamespace(**summary)
    assert (result.nll_sum, result.n_tokens, result.n_documents) == (30.0, 20, 2)
    assert result.nll_sum / result.n_tokens == 1.5
    assert result.perplexity == pytest.approx(math.exp(1.5))
    assert result.bits_per_token == pytest.approx(1.5 / math.log(2))
    assert result.bits_per_byte == pytest.approx(30 / 60 / math.log(2))
    assert result.ci_low == pytest.approx(math.e)
    assert result.ci_high == pytest.approx(math.e**2)
    assert summary == summarise(np.array([[20.0, 10], [10.0, 10]]), n_bytes=60, seed=3)


def test_interval_covers_about_95_percent():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        losses = 2.0 + 0.3 * rng.standard_normal(40)
        result = summarise(np.stack([losses * 100, np.full(40, 100.0)], 1), seed=trial)
        hits += result["ci_low"] <= math.exp(2.0) <= result["ci_high"]
    assert 0.88 <= hits / 200 <= 0.99


def test_one_document_has_no_interval_and_an_overflow_is_infinite():
    result = summarise(np.array([[8000.0, 10]]))
    assert result["ci_low"] is result["bits_per_byte"] is None
    assert result["perplexity"] == math.inf


def test_validation_loss_counts_scored_targets_only(fake_model):
    tokens = torch.arange(8).view(2, 4)
    targets = tokens + 1
    targets[0, :2] = -100
    batch = Batch(tokens, targets, torch.arange(4).expand(2, 4), None)
    model = fake_model()
    expected = model.nll(model.hidden(tokens, pos_BT=batch.pos_BT), targets).sum() / 6
    losses = validation_loss(model, {"text": [batch, batch], "none": []})
    assert losses == {"text": pytest.approx(float(expected))}


@pytest.mark.parametrize("seed", range(5))
def test_the_shares_of_any_number_of_ranks_add_up_to_the_whole(fake_model, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    docs = [document(int(n), i) for i, n in enumerate(rng.integers(2, 90, rng.integers(1, 6)))]
    window = int(rng.integers(1, 40))
    stride, micro = int(rng.integers(1, window + 1)), int(rng.integers(1, 200))
    for n_ranks in (1, 2, 3):
        monkeypatch.setattr(perplexity.dist, "world_size", lambda n=n_ranks: n)
        shares, forwards = [], set()
        for rank in range(n_ranks):
            monkeypatch.setattr(perplexity.dist, "rank", lambda rank=rank: rank)
            model = fake_model()
            shares += score_share(model, docs, [Windowing(window, stride)], micro)
            forwards.add(len(model.shapes))
        assert len(forwards) == 1  # a forward may be a collective
        documents = sum(share.documents for share in shares)
        np.testing.assert_allclose(documents[:, 0], [plain_loop(d, window, stride) for d in docs], rtol=1e-5)
        assert documents[:, 1].tolist() == [len(d) - 1 for d in docs]
        assert sum(share.positions[:, 1].sum() for share in shares) == sum(min(len(d) - 1, window) for d in docs)


def test_a_forward_on_a_cpu_stays_within_its_cache(fake_model, monkeypatch):
    monkeypatch.setattr(perplexity, "CPU_TOKENS", 32)
    model = fake_model()
    score_documents(model, [document(65, seed) for seed in range(5)], window=16, stride=16, micro_batch_tokens=10**6)
    assert max(rows * length for rows, length in model.shapes) == 32
