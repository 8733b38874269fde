"""Every scheme × every scaling equals the float64 dense reference, forward and backward, its parameters included."""

import pytest
import torch

from coca_train import positions
from coca_train.positions import frequencies
from tests.positions import reference, reference_rotary, support

SCALINGS = [s for s in support.scalings() if s["name"] in reference_rotary.KNOWN]
ROTARY = [
    *[support.rope(s) for s in SCALINGS],
    *[support.rope(s, 0.5) for s in SCALINGS],
    *[support.coca(s, "slack") for s in SCALINGS],
    *[support.coca(s, "strict") for s in SCALINGS],
]
OTHERS = [
    {"scheme": "nope"},
    support.alibi("never"),
    support.alibi("always"),
    support.coca(t_width="full_mean"),
    support.coca(variant="strict", t_width="full_mean"),
]
SETTINGS = [*ROTARY, *OTHERS]


def xpos(frequencies=support.PLAIN, rotary_pct=1.0, scale_base=8.0):
    """A scale_base that shows within a few tokens."""
    fields = {"gamma": 0.4, "scale_base": scale_base, "rotary_pct": rotary_pct}
    return {"scheme": "xpos", **fields, "frequencies": frequencies}


# Tables that end before the 13 tokens of a test do, so that it sees what happens beyond.
WITH_TERMS = [
    *[xpos(s) for s in SCALINGS],
    xpos(rotary_pct=0.5),
    xpos(scale_base=512.0),
    {"scheme": "t5", "n_buckets": 8, "max_distance": 10},
    {"scheme": "t5", "n_buckets": 7, "max_distance": 128},
    {"scheme": "kerple_log"},
    {"scheme": "kerple_power"},
    {"scheme": "sandwich", "d_bar": 128},
    {"scheme": "sandwich", "d_bar": 10},
    {"scheme": "shaw", "max_distance": 5},
    {"scheme": "shaw", "max_distance": 40},
    {"scheme": "transformer_xl", "memory_len": 0},
    {"scheme": "tupe", "max_len": 13, "n_buckets": 8, "max_distance": 10},
    {"scheme": "disentangled", "max_distance": 5},
    {"scheme": "disentangled", "max_distance": 40},
    {"scheme": "fox"},
    {"scheme": "fire", "mlp_width": 5, "threshold": 60.0},
    {"scheme": "fire", "mlp_width": 32, "threshold": 512.0},
    *[{"scheme": "dape", "bias": bias, "mlp_width": 5} for bias in ("kerple_log", "alibi", "fire")],
    {"scheme": "cope", "n_positions": 4},
    {"scheme": "cope", "n_positions": 64},
]
EMBEDDINGS = [
    {"scheme": "learned", "max_len": 13},
    {"scheme": "sinusoidal", "theta": 10000.0, "scale": 1.0},
    {"scheme": "sinusoidal", "theta": 100.0, "scale": 0.25},
]

# Parameters as checkpoints name them, in the sizes of support.build: 4 heads, 2 of keys, D 16, C 24.
PARAMETERS = {
    "learned": {"table.weight": (13, 24)},
    "t5": {"table": (8, 4)},
    "kerple_log": {"r1": (4,), "r2": (4,)},
    "kerple_power": {"r1": (4,), "r2": (4,)},
    "shaw": {"keys": (6, 16), "values": (6, 16)},
    "transformer_xl": {"u": (4, 16), "v": (4, 16), "w_r": (64, 24)},
    "tupe": {"p": (13, 24), "u_q": (64, 24), "u_k": (32, 24), "table": (8, 4)},
    "disentangled": {"p": (6, 24)},
    "fox": {"gate.weight": (4, 24), "gate.bias": (4,)},
    "fire": {f"function.{name}": (5,) if name in ("w1", "b1") else (1,) for name in ("c", "a", "w1", "b1")}
    | {"function.w2": (4, 5)},
    "dape": {"bias.r1": (4,), "bias.r2": (4,), "w_in": (5, 8), "b_in": (5,), "w_out": (4, 5)},
    "cope": {"e": (4, 16)},
}
WITH_ANGLES = {"xpos", "sandwich", "transformer_xl"}  # made in float32 in any dtype
PER_LAYER = {"kerple_log", "kerple_power", "shaw", "transformer_xl", "fox", "fire", "dape", "cope"}


def tolerance(settings):
    """What float64 scores may differ by."""
    return 1e-6 if settings["scheme"] in WITH_ANGLES else 1e-9


def rounding(settings):
    """What float32 may differ by. FIRE's c is one number, whose gradient is a sum over all pairs that mostly cancel."""
    return 1e-3 if "fire" in settings.values() else 1e-5


def gradients(out, inputs, weight):
    """Of one weighted sum; zero where an input has no part in it."""
    found = torch.autograd.grad(out, inputs, weight.to(out.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def both(settings, n_tokens, dtype, heads=(4, 2), length=None, first=0):
    """(ours, reference): output and gradients of q, k, v and all parameters for one random problem."""
    scheme = support.build(settings, *heads).to(dtype)
    layer = support.layer_of(scheme).to(dtype)
    parameters = dict([*scheme.named_parameters(), *layer.named_parameters()])
    pos, length = support.start(n_tokens, first), length or n_tokens
    q, k, v = support.random_qkv(scheme, n_tokens, dtype=dtype, seed=n_tokens)
    weight = torch.randn(q.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = support.dense_attention(scheme, q, k, v, pos, pos, length, layer)
    mine = [out, *gradients(out, (q, k, v, *parameters.values()), weight)]

    wide = [x.detach().double().requires_grad_() for x in (q, k, v, *parameters.values())]
    named = dict(zip(parameters, wide[3:], strict=True))
    exact = reference.attention(settings, *wide[:3], pos, length, named, support.projections(scheme))
    return mine, [exact, *gradients(exact, wide, weight)]


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


@pytest.mark.parametrize("settings", WITH_TERMS, ids=support.label)
@pytest.mark.parametrize("n_tokens", [1, 7, 13])
def test_terms_equal_reference_in_float64(settings, n_tokens):
    assert_close(*both(settings, n_tokens, torch.float64), tolerance=tolerance(settings))


@pytest.mark.parametrize("settings", WITH_TERMS, ids=support.label)
def test_terms_equal_reference_in_float32(settings):
    assert_close(*both(settings, 13, torch.float32), tolerance=rounding(settings))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 3), (1, 1)], ids=lambda h: f"{h[0]}q{h[1]}kv")
@pytest.mark.parametrize("settings", [support.rope(), support.coca(), *OTHERS, *WITH_TERMS], ids=support.label)
def test_grouped_heads_equal_reference(settings, heads):
    assert_close(*both(settings, 9, torch.float32, heads), tolerance=rounding(settings))


@pytest.mark.parametrize("settings", EMBEDDINGS, ids=support.label)
@pytest.mark.parametrize("n_tokens", [1, 7, 13])
def test_embeddings_equal_reference(settings, n_tokens):
    scheme = support.build(settings)
    parameters = dict(scheme.named_parameters())
    x_BTC = torch.randn(2, n_tokens, 24, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    pos = torch.stack((torch.arange(n_tokens), torch.arange(n_tokens).flip(0)))
    wide = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
    mine, exact = scheme.embed(x_BTC, pos), reference.embed(settings, x_BTC, pos, wide)
    assert_close([mine], [exact], tolerance=1e-6)
    for name, value in parameters.items():
        sums = (torch.autograd.grad((y * x_BTC).sum(), x) for y, x in ((mine, value), (exact, wide[name])))
        assert_close(*sums, tolerance=1e-9)
    assert_close(*both(settings, n_tokens, torch.float64), tolerance=1e-9)  # and scores are left alone


@pytest.mark.parametrize("settings", [*ROTARY, *map(xpos, SCALINGS)], ids=support.label)
def test_dynamic_length_is_the_one_given(settings):
    """`length` may exceed the tokens in hand: generation adapts to prompt + new tokens at once."""
    assert_close(*both(settings, 7, torch.float32, length=50), tolerance=1e-5)


@pytest.mark.parametrize("settings", [*SETTINGS, *WITH_TERMS], ids=support.label)
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
        assert torch.allclose(step, full[:, i : i + 1], rtol=0, atol=1e-6 if settings in WITH_TERMS else 1e-12)


@pytest.mark.parametrize("variant", ["slack", "strict"])
def test_coca_query_gradient_passes_gradcheck(variant):
    """The two hand-written backward passes, against finite differences in float64."""
    scheme = support.build(support.coca(variant=variant), 2, 1, 8)
    pos = support.start(5)
    q, k, _ = support.random_qkv(scheme, 5, batch=1)
    tables = scheme(pos, pos, 5)
    assert torch.autograd.gradcheck(lambda q, k: scheme.rotate(q, k, tables), (q, k))


def test_every_scheme_has_a_reference_and_is_compared_with_it():
    compared = {settings["scheme"] for settings in [*SETTINGS, *WITH_TERMS, *EMBEDDINGS]}
    assert compared == set(reference.SCORES) == set(positions.scheme_names())


def test_every_frequency_choice_has_a_reference():
    """CLEX has an equation to solve instead of a formula: tests/positions/test_clex.py."""
    assert reference_rotary.KNOWN | {"clex"} == set(frequencies.frequency_names())


@pytest.mark.parametrize("name", positions.scheme_names())
def test_parameters_have_their_names_and_shapes(name):
    """What a checkpoint holds; and the reference has used every one of them."""
    settings = next(s for s in [*SETTINGS, *WITH_TERMS, *EMBEDDINGS] if s["scheme"] == name)
    scheme = support.build(settings)
    shared, own = ({n: tuple(p.shape) for n, p in m.named_parameters()} for m in (scheme, support.layer_of(scheme)))
    expected = PARAMETERS.get(name, {})
    assert (shared, own) == (({}, expected) if name in PER_LAYER else (expected, {}))
