"""CoCA beyond the reference: what is absolute, what is kept, what folds."""

import math

import pytest
import torch

from coca_train.positions.schemes import coca
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support


class TestContract(SchemeContract):
    scheme = "coca"
    angles = True
    cases = [support.coca(variant=v, t_width=w) for v in ("slack", "strict") for w in ("half", "full_mean")]
    cases += [support.coca(support.scaling(name)) for name in ("yarn", "dynamic_ntk")]
    cases += [support.coca(support.scaling("yarn"), v, w, 0.5) for v, w in (("slack", "full_mean"), ("strict", "half"))]

    def score(self, problem):
        """Eq. 11 (slack) or Eq. 18 (strict) with t = ReLU of what is cached, at half width; a plain product of features
        that do not turn."""
        settings, dim = problem.settings, problem.q_BHTD.shape[-1]
        width = round(dim * settings["rotary_pct"])
        t, k_rest = problem.k_BHSK[..., : width // 2].relu(), problem.k_BHSK[..., width // 2 :]
        pairs, q_rest = pairwise.pairs(problem.q_BHTD[..., :width]), problem.q_BHTD[..., width:]
        theta, temperature = problem.spectrum(width)
        total = torch.einsum("bhtd,bhsd->bhts", q_rest.double(), k_rest.double())
        for j, frequency in enumerate(theta):
            q, t_j = pairs[..., :, None, j], t[..., None, :, j]
            m, n = (x[:, None].double() * frequency for x in (problem.m_BTS, problem.n_BTS))
            if settings["variant"] == "strict":
                total = total + t_j * q.abs() ** 2 * torch.cos(m - n)
                continue
            q_turned, t_turned = (
                x * torch.polar(torch.ones_like(a), a) for x, a in ((q, m), (torch.complex(t_j, t_j), n))
            )
            total = total + q_turned.real * q.real * t_turned.real + q_turned.imag * q.imag * t_turned.imag
        return total * temperature**2 / math.sqrt(dim)


def test_slack_is_strict_when_the_two_halves_of_q_agree():
    """Eq. 12: with q_2j = q_2j+1 the constraint holds and both variants are one function."""
    slack, strict = (parts.build(support.coca(variant=v)) for v in ("slack", "strict"))
    q, k, _ = parts.random_qkv(slack, 7)
    half = q[..., : q.shape[-1] // 2]
    q = torch.cat((half, half), -1)
    pos = parts.start(7)
    a, b = (parts.dense_scores(s, q, k, pos, pos, 7) for s in (slack, strict))
    assert torch.allclose(a, b, rtol=0, atol=1e-5)


def test_slack_by_its_closed_form():
    """The closed form of docs/positions.md: ½ Σ t|q|²[(1+sin2φ)cosΔ + cos2φ sinΔ + (1-sin2φ)cosΣ - cos2φ sinΣ]."""
    scheme = parts.build(support.coca(), 1, 1, 8)
    q, t, _ = parts.random_qkv(scheme, 6, batch=1)
    score = parts.dense_scores(scheme, q, t, parts.start(6), parts.start(6), 6)[0, 0]
    a, b = q[0, :, 0, :4], q[0, :, 0, 4:]
    phi, square, t = torch.atan2(b, a)[:, None], (a**2 + b**2)[:, None], t[0, None, :, 0].clamp(min=0)
    m, n = torch.arange(6.0).double()[:, None, None], torch.arange(6.0).double()[None, :, None]
    theta = torch.tensor([10000.0 ** (-j / 4) for j in range(4)]).double()
    delta, total = (m - n) * theta, (m + n) * theta
    near = (1 + (2 * phi).sin()) * delta.cos() + (2 * phi).cos() * delta.sin()
    far = (1 - (2 * phi).sin()) * total.cos() - (2 * phi).cos() * total.sin()
    assert torch.allclose(score, (t * square * (near + far)).sum(-1) / 2 / 8**0.5, rtol=0, atol=1e-5)


def test_strict_never_prefers_the_token_before():
    """Weights of cosines are not negative: of one key the nearest place counts most. Slack may turn the peak by φ."""

    def prefers_before(variant):
        scheme = parts.build(support.coca(variant=variant))
        q, k, _ = parts.random_qkv(scheme, 40)
        scores = parts.dense_scores(scheme, q, k[:, :1].expand_as(k), parts.start(40), parts.start(40), 40)
        here, others = scores.diagonal(dim1=-2, dim2=-1)[..., None], scores.tril(-1)
        return bool((others[..., 1:, :] > here[..., 1:, :] + 1e-5).any())

    assert not prefers_before("strict") and prefers_before("slack")


def test_negative_t_contributes_nothing_and_gets_no_gradient():
    scheme = parts.build(support.coca())
    q, k, _ = parts.random_qkv(scheme, 5)
    pos = parts.start(5)
    _, key = scheme.rotate(q, -k.abs(), scheme(pos, pos, 5))
    assert not key.any()
    (grad,) = torch.autograd.grad(scheme.rotate(q, k, scheme(pos, pos, 5))[1].square().sum(), k)
    assert not grad[k < 0].any()
    assert grad[k > 0].all()


@pytest.mark.parametrize("bias", [False, True])
def test_official_weights_fold_into_half_width(bias):
    """full_mean with W equals half with the folded W, as functions, and both cache a value per pair."""
    full, half = (parts.build(support.coca(t_width=w)) for w in ("full_mean", "half"))
    assert [(each.projected_key_dim, each.key_dim) for each in (full, half)] == [(16, 8), (8, 8)]
    weight = torch.randn(2 * 16, 24, dtype=torch.float64)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    offset = torch.randn(2 * 16, dtype=torch.float64) * bias
    wide = (x @ weight.T + offset).unflatten(-1, (2, 16))
    folded = x @ coca.fold_full_mean(weight, 2).T + coca.fold_full_mean(offset, 2)
    a, b = full.layer().reduce_keys(wide), half.layer().reduce_keys(folded.unflatten(-1, (2, 8)))
    assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_the_key_of_full_width_is_rounded_once():
    """In bfloat16 the mean of the halves stays float32 until k' is formed, as before it moved in front of the cache."""
    scheme = parts.build(support.coca(t_width="full_mean"))
    q, _, _ = parts.random_qkv(scheme, 33, dtype=torch.bfloat16)
    wide = torch.randn(2, 33, 2, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    pos = parts.start(33)
    tables = scheme(pos, pos, 33)
    t = (wide[..., :8].float() + wide[..., 8:].float()) / 2
    key = torch.cat((t, t), -1).relu() * tables.key_BS1R
    assert torch.equal(scheme.rotate(q, scheme.layer().reduce_keys(wide), tables)[1], key.bfloat16())


@pytest.mark.parametrize("variant", ["slack", "strict"])
def test_the_backward_pass_keeps_q_and_t_and_nothing_wider(variant):
    """Memory: in bfloat16, neither R q nor q in float32 survives the forward pass."""
    scheme = parts.build(support.coca(variant=variant))
    q, k, _ = parts.random_qkv(scheme, 64, dtype=torch.bfloat16)
    pos = parts.start(64)
    tables = scheme(pos, pos, 64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        scheme.rotate(q, k, tables)
    by_token_and_head = [x for x in kept if x.shape[2] > 1]
    assert sum(x.numel() * x.element_size() for x in by_token_and_head) <= 2 * (q.numel() + k.numel())


def test_query_is_formed_in_float32_and_cast_once():
    """q' is quadratic: rounding R q to bfloat16 before the product would show in most elements."""
    scheme = parts.build(support.coca())
    q, k, _ = parts.random_qkv(scheme, 33, dtype=torch.bfloat16)
    pos = parts.start(33)
    tables = scheme(pos, pos, 33)
    once = scheme.rotate(q, k, tables)
    wide = scheme.rotate(q.float(), k.float(), tables)
    for mine, exact in zip(once, wide, strict=True):
        assert torch.equal(mine, exact.bfloat16())
