"""Chunked cross-entropy equals torch's on full logits, gradients included, and never holds all logits."""

import pytest
import torch
from torch.nn import functional as F

from coca_train.models import loss
from coca_train.models.loss import summed_cross_entropy, token_nll
from coca_train.runtime.device import pretend_device
from tests.models.watching import Largest


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(loss, "chunk_size", lambda n_tokens, vocab_size, device: 5)


def example(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(23, 16, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    w = torch.randn(31, 16, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, 31, (23,), generator=generator)
    targets[[0, 7, 22]] = -100
    return x, w, targets


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sum_and_gradients_equal_full_logits(device):
    x, w, targets = example()
    with pretend_device(device):
        total = summed_cross_entropy(x, w, targets)
    (total * 0.25).backward()
    x2, w2, _ = example()
    expected = F.cross_entropy(x2 @ w2.T, targets, ignore_index=-100, reduction="sum")
    (expected * 0.25).backward()
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad, x2.grad)
    torch.testing.assert_close(w.grad, w2.grad)


def test_logits_of_minus_infinity_count_for_nothing_where_nothing_is_scored():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    logits[:, :3] = -torch.inf
    targets = torch.tensor([5, -100, 8, 1])
    nll, gradient = loss.score_in_passes(logits.clone(), targets)
    expected = F.cross_entropy(logits, targets, ignore_index=-100, reduction="none")
    assert nll.tolist() == pytest.approx(expected.tolist()) and nll[1] == 0 and nll[3] == torch.inf
    assert gradient[:3].isfinite().all() and not gradient[1].any() and not gradient[[0, 2], :3].any()


def test_bfloat16_loss_is_formed_in_float32():
    x, w, targets = example(torch.bfloat16)
    expected = F.cross_entropy((x @ w.T).float(), targets, ignore_index=-100, reduction="sum")
    torch.testing.assert_close(summed_cross_entropy(x, w, targets), expected, rtol=1e-6, atol=0)


def test_token_nll_by_token():
    x, w, targets = example(torch.float32)
    expected = F.cross_entropy(x @ w.T, targets, ignore_index=-100, reduction="none")
    torch.testing.assert_close(token_nll(x, w, targets), expected)
    assert token_nll(x, w, targets)[7] == 0


def test_nothing_scored_is_zero_with_zero_gradients():
    x, w, targets = example(torch.float32)
    summed_cross_entropy(x, w, torch.full_like(targets, -100)).backward()
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("trained", ["x", "w"])
def test_gradients_that_are_not_wanted_change_nothing(trained):
    tensors = dict(zip("xw", example()[:2], strict=True))
    wanted = tensors[trained]
    expected = torch.autograd.grad(summed_cross_entropy(*tensors.values(), example()[2]), wanted)
    (frozen,) = (tensor for name, tensor in tensors.items() if name != trained)
    frozen.requires_grad_(False)
    torch.testing.assert_close(
        torch.autograd.grad(summed_cross_entropy(*tensors.values(), example()[2]), wanted), expected, rtol=0, atol=0
    )


def test_chunks_are_a_caches_on_a_cpu_and_long_and_even_on_a_gpu(monkeypatch):
    monkeypatch.undo()
    assert loss.chunk_size(8192, 100_864, "cpu") == 83  # 2**23 logits
    assert loss.chunk_size(8192, 100_864, "cuda") == 2048
    assert loss.chunk_size(2048, 1_000_000, "cuda") == 2048  # never fewer, but where there are fewer
    assert loss.chunk_size(8500, 32_000, "cuda") == 4250
    assert loss.chunk_size(100, 32_000, "cuda") == 100


def test_full_logits_are_never_held(monkeypatch):
    monkeypatch.undo()
    x = torch.randn(4096, 8, requires_grad=True)
    w = torch.randn(50000, 8, requires_grad=True)
    with Largest() as largest:
        summed_cross_entropy(x, w, torch.zeros(4096, dtype=torch.int64)).backward()
    assert largest.numel <= 2 * loss.LOGITS_PER_CHUNK["cpu"] < 4096 * 50000 / 4
