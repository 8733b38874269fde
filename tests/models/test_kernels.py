"""Every kernel equals the definition, gradients included; and the definition equals a plain loop."""

import math

import pytest
import torch

from coca_train.models import kernels
from coca_train.models.kernels import KERNELS, Bias

FAST = ["sdpa", "blocked", "auto"]


def random_qkv(n_queries, n_keys, *, dtype=torch.float64, heads=4, groups=2, width=12, value_width=8):
    generator = torch.Generator().manual_seed(n_queries * 1000 + n_keys)
    shapes = ((2, n_queries, heads, width), (2, n_keys, groups, width), (2, n_keys, groups, value_width))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def distance_bias(score, b, h, q, k):
    return score - 0.1 * (h + 1) * (q - k).abs()


def biases(n_keys):
    doc_BS = (torch.arange(n_keys) * 3 // n_keys)[None].repeat(2, 1)
    return {
        "causal": Bias(),
        "bias": Bias(distance_bias),
        "documents": Bias(None, doc_BS),
        "both": Bias(distance_bias, doc_BS),
    }


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    monkeypatch.setattr(kernels, "RECOMPUTE_ABOVE", 9)


def test_definition_is_softmax_over_visible_keys():
    q, k, v = random_qkv(5, 7)
    doc = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0] * 7])
    out = KERNELS["eager"](q, k, v, 0.3, Bias(distance_bias, doc))
    for b in range(2):
        for h in range(4):
            for i in range(5):
                m = i + 2  # the queries are the last five of seven
                seen = [n for n in range(7) if n <= m and doc[b, n] == doc[b, m]]
                scores = [0.3 * (q[b, i, h] @ k[b, n, h // 2]).item() - 0.1 * (h + 1) * abs(i - n) for n in seen]
                weights = [math.exp(s) for s in scores]
                expected = sum(w * v[b, n, h // 2] for w, n in zip(weights, seen, strict=True)) / sum(weights)
                torch.testing.assert_close(out[b, i, h], expected)


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (7, 7), (16, 16), (1, 9), (3, 11)])
@pytest.mark.parametrize("kind", ["causal", "bias", "documents", "both"])
def test_fast_equals_definition_with_gradients(kernel, n_queries, n_keys, kind):
    bias = biases(n_keys)[kind]
    expected, got = random_qkv(n_queries, n_keys), random_qkv(n_queries, n_keys)
    out_expected = KERNELS["eager"](*expected, 0.3, bias)
    out = KERNELS[kernel](*got, 0.3, bias)
    torch.testing.assert_close(out, out_expected)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (out_expected * weights).sum().backward()
    (out * weights).sum().backward()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("kernel", FAST)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision_stays_close(kernel, dtype, rtol):
    expected = KERNELS["eager"](*random_qkv(33, 33), 0.3, Bias())
    out = KERNELS[kernel](*random_qkv(33, 33, dtype=dtype), 0.3, Bias()).double()
    assert (out - expected).abs().max() <= rtol * expected.abs().max()


def test_long_sequences_hold_no_square():
    """T = 32 768: a T x T tensor would take 2 GiB a head in bfloat16."""
    n = 32768
    q, k, v = random_qkv(n, n, dtype=torch.bfloat16, heads=1, groups=1, width=8)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple) else (out,):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    with torch.no_grad(), Watch():
        out = KERNELS["auto"](q[:1], k[:1], v[:1], 0.3, Bias())
    assert out.shape == (1, n, 1, 8)
    assert largest < n * n / 1000
