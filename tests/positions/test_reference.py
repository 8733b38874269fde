"""Every scheme × every scaling equals the float64 dense reference, forward and backward."""

import pytest
import torch

from tests.positions import reference, support

ROTARY = [
    *[support.rope(s) for s in support.scalings()],
    *[support.rope(s, 0.5) for s in support.scalings()],
    *[support.coca(s, "slack") for s in support.scalings()],
    *[support.coca(s, "strict") for s in support.scalings()],
]
OTHERS = [
    {"scheme": "nope"},
    support.alibi("never"),
    support.alibi("always"),
    support.coca(t_width="full_mean"),
    support.coca(variant="strict", t_width="full_mean"),
]
SETTINGS = [*ROTARY, *OTHERS]


def both(settings, n_tokens, dtype, heads=(4, 2), length=None, first=0):
    """(ours, reference): output and gradients of q, k, v for one random problem."""
    scheme = support.build(settings, *heads)
    pos, length = support.start(n_tokens, first), length or n_tokens
    q, k, v = support.random_qkv(scheme, n_tokens, dtype=dtype, seed=n_tokens)
    weight = torch.randn(q.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = support.dense_attention(scheme, q, k, v, pos, pos, length)
    mine = [out, *torch.autograd.grad(out, (q, k, v), weight.to(dtype))]

    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = reference.scores(settings, wide[0], wide[1], pos, pos, length)
    exact = reference.attend(scores, wide[2], torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril())
    return mine, [exact, *torch.autograd.grad(exact, wide, weight, allow_unused=True)]


def assert_close(mine, exact, tolerance):
    """Largest difference, relative to the largest value of each tensor."""
    for a, b in zip(mine, exact, strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max() + 1e-12


@pytest.mark.parametrize("settings", SETTINGS, ids=support.label)
@pytest.mark.parametrize("n_tokens", [1, 7, 33])
def test_float32_equals_reference(settings, n_tokens):
    assert_close(*both(settings, n_tokens, torch.float32), tolerance=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=support.label)
def test_bfloat16_equals_reference(settings):
    assert_close(*both(settings, 33, torch.bfloat16), tolerance=2e-2)


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 3), (1, 1)], ids=lambda h: f"{h[0]}q{h[1]}kv")
@pytest.mark.parametrize("settings", [support.rope(), support.coca(), *OTHERS], ids=support.label)
def test_grouped_heads_equal_reference(settings, heads):
    assert_close(*both(settings, 9, torch.float32, heads), tolerance=1e-5)


@pytest.mark.parametrize("settings", ROTARY, ids=support.label)
def test_dynamic_length_is_the_one_given(settings):
    """`length` may exceed the tokens in hand: generation adapts to prompt + new tokens at once."""
    assert_close(*both(settings, 7, torch.float32, length=50), tolerance=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=support.label)
def test_decoding_with_cached_keys_equals_full_recompute(settings):
    """Un-rotated keys, one query at a time, tables of the current positions (one fixed length for the call)."""
    scheme = support.build(settings)
    pos = support.start(11)
    q, k, v = (x.detach() for x in support.random_qkv(scheme, 11))
    full = support.dense_attention(scheme, q, k, v, pos, pos, 40)
    for i in range(11):
        seen = slice(0, i + 1)
        now = slice(i, i + 1)
        step = support.dense_attention(scheme, q[:, now], k[:, seen], v[:, seen], pos[:, now], pos[:, seen], 40)
        assert torch.allclose(step, full[:, i : i + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["slack", "strict"])
def test_coca_query_gradient_passes_gradcheck(variant):
    """The two hand-written backward passes, against finite differences in float64."""
    scheme = support.build(support.coca(variant=variant), 2, 1, 8)
    pos = support.start(5)
    q, k, _ = support.random_qkv(scheme, 5, batch=1)
    tables = scheme.tables(pos, pos, 5)
    assert torch.autograd.gradcheck(lambda q, k: scheme.rotate(q, k, tables), (q, k))
