"""ALiBi: the two paths mean the same, to what accuracy, and which is taken."""

import math

import pytest
import torch
from torch.nn import functional as F

from coca_train.testing import parts
from coca_train.testing.problem import attend, problem
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support


class TestContract(SchemeContract):
    scheme = "alibi"
    cases = ({"fold": "never"}, {"fold": "always"})

    def score(self, problem):
        return problem.content_BHTS + pairwise.alibi_bias(problem)


def definition(q, k, pos_q, pos_k, length):
    return TestContract().score(problem(support.alibi(), q, k, pos_q, pos_k, length))


def fused(q_BTHE, k_BSGE, v_BSGD, head_dim):
    """torch's fused attention for queries that are the last of the keys."""
    heads = q_BTHE.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q_BTHE, k_BSGE, v_BSGD))
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    v = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
    n_queries, n_keys = q.shape[2], k.shape[2]
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1 / math.sqrt(head_dim))
    return out[..., :head_dim].transpose(1, 2)


@pytest.mark.parametrize("first", [0, 65530, 131461])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("heads", [6, 8])
def test_folded_equals_reference_where_parts_of_positions_carry_over(first, dtype, tolerance, heads):
    """Across 2^16 and 2^17, where one and two parts of bfloat16 no longer hold a position."""
    scheme = parts.build(support.alibi("always"), heads, 2, 64)
    pos = parts.start(13, first)
    q, k, v = (x.detach() for x in parts.random_qkv(scheme, 13, 1, dtype))
    out = fused(*scheme.rotate(q, k, scheme(pos, pos, 13)), v, 64)
    scores = definition(q.double(), k.double(), pos, pos, 13)
    exact = attend(scores, v.double(), torch.ones(13, 13, dtype=torch.bool).tril())
    assert (out.double() - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_folded_keeps_its_accuracy_at_32k(dtype, tolerance):
    """slope·√D·n is 185 000 there. The obvious fold (slope·n alone, as two features) is off by 5e-4 in float32."""
    scheme = parts.build(support.alibi("always"), 16, 2, 64)
    generator, pos = torch.Generator().manual_seed(0), parts.start(32768)
    sizes = ((4, 16), (32768, 2), (32768, 2))  # tokens, heads
    q, k, v = (torch.randn(1, *size, 64, generator=generator, dtype=torch.float64).to(dtype) for size in sizes)
    out = fused(*scheme.rotate(q, k, scheme(pos[:, -4:], pos, 32768)), v, 64)
    scores = definition(q.double(), k.double(), pos[:, -4:], pos, 32768)
    exact = attend(scores, v.double(), torch.ones(4, 32768, dtype=torch.bool).tril(32764))
    assert (out.double() - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("first", [0, 1000, 131461])
def test_folded_features_hold_slopes_and_positions_to_sixteen_bits(dtype, first):
    """The exact sum of the eight products, in any dtype: slope·√D·(n-m) up to a constant per query."""
    scheme = parts.build(support.alibi("always"), 16, 1, 64)
    pos = parts.start(300, first)
    q, k = torch.zeros(1, 300, 16, 64, dtype=dtype), torch.zeros(1, 300, 1, 64, dtype=dtype)
    query, key = (x.double() for x in scheme.rotate(q, k, scheme(pos, pos, 300)))
    scores = torch.einsum("bthe,bse->hts", query, key[:, :, 0])
    scores = scores - scores.diagonal(0, 1, 2)[..., None]
    distance = (pos[0, None, :] - pos[0, :, None]).double()
    exact = 8 * torch.tensor(pairwise.alibi_slopes(16)).double()[:, None, None] * distance
    assert torch.allclose(scores, exact, rtol=2**-16, atol=1e-9)


def test_folded_scores_differ_from_plain_by_a_constant_per_query():
    """Among the keys a query sees; a table over distances knows no future."""
    plain, folded = (parts.build(support.alibi(fold)) for fold in ("never", "always"))
    q, k, _ = parts.random_qkv(plain, 9)
    pos = parts.start(9, 100)
    a, b = (parts.dense_scores(s, q, k, pos, pos, 9) for s in (plain, folded))
    constant = (a - b)[..., :1]
    assert torch.allclose((a - b).tril(), constant.expand_as(a).tril(), rtol=0, atol=1e-6)


def test_folding_adds_eight_features():
    """Fused CUDA kernels want a multiple of eight."""
    scheme = parts.build(support.alibi("always"))
    q, k, _ = parts.random_qkv(scheme, 3)
    pos = parts.start(3)
    tables = scheme(pos, pos, 3)
    q_BTHE, k_BSGE = scheme.rotate(q, k, tables)
    assert q_BTHE.shape[-1] == k_BSGE.shape[-1] == 24
    assert torch.equal(q_BTHE[..., 8:], q)
    assert torch.equal(k_BSGE[..., 8:], k)
    assert scheme.terms(tables) == (None, None, None, None)


@pytest.mark.parametrize(
    ("fold", "length", "folds"),
    [("auto", 1024, False), ("auto", 1025, True), ("always", 1, True), ("never", 10**6, False)],
)
def test_the_path_is_a_function_of_the_length(fold, length, folds):
    """Exactly one of rotate and terms carries the bias. (CUDA folds always, see below.)"""
    scheme = parts.build(support.alibi(fold))
    pos = parts.start(2)
    q, k, _ = parts.random_qkv(scheme, 2)
    tables = scheme(pos, pos, length)
    assert (scheme.rotate(q, k, tables)[0].shape[-1] > q.shape[-1]) == folds
    assert (scheme.terms(tables).distance_HR is None) == folds


def test_plain_bias_worked_by_hand():
    """4 heads: slopes 2^-2, 2^-4, 2^-6, 2^-8. 6 heads: after 2^-2 … 2^-8, every second of eight: 2^-1, 2^-3."""
    pos = parts.start(4, 1000)
    for heads, slopes in ((4, [0.25, 0.0625, 2**-6, 2**-8]), (6, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125])):
        scheme = parts.build(support.alibi("never"), heads, 2)
        table = scheme.terms(scheme(pos, pos, 4)).distance_HR
        assert table.dtype == torch.float32
        assert table.tolist() == [[-slope * r for r in range(4)] for slope in slopes]


def test_a_decoding_step_needs_all_distances():
    """One query at position 1003 with keys from 1000 on."""
    scheme, pos = parts.build(support.alibi("never")), parts.start(4, 1000)
    step = scheme.terms(scheme(pos[:, 3:], pos, 4)).distance_HR
    assert torch.equal(step, scheme.terms(scheme(pos, pos, 4)).distance_HR)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_folds_and_flash_attention_runs_it():
    scheme = parts.build(support.alibi("auto"), 8, 8, 64)
    pos = parts.start(777).cuda()
    q, k, v = (x.detach().cuda() for x in parts.random_qkv(scheme, 777, 1, torch.bfloat16))
    tables = scheme(pos, pos, 777)
    assert scheme.terms(tables).distance_HR is None
    query, key = (x.transpose(1, 2) for x in scheme.rotate(q, k, tables))
    value = F.pad(v.transpose(1, 2), (0, 8))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1 / 8)[..., :64]
    pos, q, k, v = (x.cpu() for x in (pos, q, k, v))
    scores = definition(q.double(), k.double(), pos, pos, 777)
    exact = attend(scores, v.double(), torch.ones(777, 777, dtype=torch.bool).tril())
    assert (out.transpose(1, 2).cpu().double() - exact).abs().max() <= 2e-2 * exact.abs().max()
