"""Attention of every scheme under every visibility equals the float64 dense reference, by way of the real kernels."""

import itertools

import pytest
import torch

from coca_train import positions
from coca_train.models.kernels import KERNELS
from coca_train.models.scores import part_of
from coca_train.positions import visibilities
from tests.positions import reference, support

DOCUMENTS = torch.tensor([[0] * 3 + [1] * 8 + [2] * 6, [0] * 12 + [1] * 5])
N_TOKENS = DOCUMENTS.shape[1]
SCHEMES = [
    {"scheme": "nope"},
    support.rope(),
    support.rope(support.scaling("yarn"), 0.5),
    support.coca(),
    support.coca(variant="strict"),
    support.alibi("never"),
    support.alibi("always"),
    {"scheme": "xpos", "gamma": 0.4, "scale_base": 8.0, "rotary_pct": 1.0, "frequencies": support.PLAIN},
    {"scheme": "t5", "n_buckets": 8, "max_distance": 10},
    {"scheme": "kerple_log"},
    {"scheme": "kerple_power"},
    {"scheme": "sandwich", "d_bar": 128},
    {"scheme": "shaw", "max_distance": 5},
    {"scheme": "transformer_xl", "memory_len": 0},
    {"scheme": "tupe", "max_len": N_TOKENS, "n_buckets": 8, "max_distance": 10},
    {"scheme": "disentangled", "max_distance": 5},
    {"scheme": "learned", "max_len": N_TOKENS},
    {"scheme": "sinusoidal", "theta": 10000.0, "scale": 1.0},
    {"scheme": "fox"},
    {"scheme": "fire", "mlp_width": 5, "threshold": 25.0},
    {"scheme": "dape", "bias": "kerple_log", "mlp_width": 5},
    {"scheme": "cope", "n_positions": 4},
]
VISIBILITIES = [
    {"name": "causal"},
    {"name": "sliding_window", "window": 4},
    {"name": "sinks", "n_sink": 2, "window": 4},
    {"name": "lambda_mask", "n_global": 3, "window": 4, "max_distance": 7},
    {"name": "lambda_mask", "n_global": 2, "window": 6, "max_distance": 3},
    {"name": "rerope", "window": 5},
    {"name": "segments", "length": 5},
]


def allowed(scheme, visibility):
    return not visibilities.build(visibilities.settings(visibility)).problems(support.build(scheme))


PAIRS = [pair for pair in itertools.product(SCHEMES, VISIBILITIES) if allowed(*pair)]
IDS = [f"{support.label(scheme)}-{'-'.join(map(str, rules.values()))}" for scheme, rules in PAIRS]


def kernel_attention(kernel, scheme, layer, visibility, q, k, v, pos_BT, pos_BS, doc_BS):
    """What a model's attention does with one layer's q, k, v."""
    layouts = visibilities.build(visibilities.settings(visibility)).layouts(pos_BT, pos_BS, doc_BS)
    project = support.projections(scheme, q.dtype)
    parts = []
    for layout in layouts:
        tables = scheme(layout.pos_BT, layout.pos_BS, N_TOKENS)
        mapped = layer(scheme, q, k, tables, project, support.tokens(layer, k))
        parts.append(part_of(mapped, layout))
    return KERNELS[kernel](parts, v, scheme.shape.head_dim**-0.5)


def problem(settings, dtype, documents):
    """(scheme, layer, [q, k, v, parameters …], names, positions, documents), packed or not."""
    scheme = support.build(settings).to(dtype)
    layer = support.layer_of(scheme).to(dtype)
    named = dict([*scheme.named_parameters(), *layer.named_parameters()])
    for name, parameter in named.items():
        if name.endswith(("r1", "r2")):  # KERPLE's: inside their bounds, where gradients of views simply add up
            parameter.data.abs_().add_(0.1)
    inputs = [*support.random_qkv(scheme, N_TOKENS, dtype=dtype), *named.values()]
    if not documents:
        return scheme, layer, inputs, list(named), support.start(N_TOKENS), None
    pos = torch.stack([torch.cat([torch.arange(int(n)) for n in row.bincount()]) for row in DOCUMENTS])
    return scheme, layer, inputs, list(named), pos, DOCUMENTS


def expected(settings, visibility, scheme, inputs, names, pos, doc, weight):
    """(output, gradients of all inputs) of the reference."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    named = dict(zip(names, wide[3:], strict=True))
    out = reference.attention(settings, *wide[:3], pos, N_TOKENS, named, support.projections(scheme), visibility, doc)
    return out, torch.autograd.grad(out, wide, weight, allow_unused=True)


@pytest.mark.parametrize("kernel", ["eager", "blocked"])
@pytest.mark.parametrize("documents", [False, True], ids=["one", "packed"])
@pytest.mark.parametrize(("settings", "visibility"), PAIRS, ids=IDS)
def test_kernel_equals_reference(settings, visibility, documents, kernel):
    scheme, layer, inputs, names, pos, doc = problem(settings, torch.float32, documents)
    out = kernel_attention(kernel, scheme, layer, visibility, *inputs[:3], pos, pos, doc)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = torch.autograd.grad(out, inputs, weight.float(), allow_unused=True)
    exact, gradients = expected(settings, visibility, scheme, inputs, names, pos, doc, weight)
    least = 1e-5 if settings["scheme"] == "fire" else 1e-9  # a sum over all pairs may cancel to nothing
    assert (out - exact).abs().max() <= 1e-5 * exact.abs().max()
    for name, a, b in zip(["q", "k", "v", *names], mine, gradients, strict=True):
        if a is None or b is None:
            assert (a is None or not a.any()) and (b is None or not b.any()), name
        else:
            assert (a - b).abs().max() <= 2e-5 * b.abs().max() + least, name


@pytest.mark.parametrize(("settings", "visibility"), PAIRS, ids=IDS)
def test_bfloat16_equals_reference(settings, visibility):
    scheme, layer, inputs, names, pos, doc = problem(settings, torch.bfloat16, True)
    out = kernel_attention("blocked", scheme, layer, visibility, *inputs[:3], pos, pos, doc)
    exact, _ = expected(settings, visibility, scheme, inputs, names, pos, doc, torch.zeros(out.shape).double())
    assert out.dtype == torch.bfloat16
    assert (out.double() - exact).abs().max() <= 2e-2 * exact.abs().max()


@pytest.mark.parametrize(("settings", "visibility"), PAIRS, ids=IDS)
def test_cached_decoding_equals_reference(settings, visibility):
    """One query at a time over all keys so far, un-rotated as a cache holds them."""
    scheme, layer, inputs, names, pos, _ = problem(settings, torch.float64, False)
    q, k, v = (x.detach() for x in inputs[:3])
    exact, _ = expected(settings, visibility, scheme, inputs, names, pos, None, torch.zeros(q.shape).double())
    for i in range(N_TOKENS):
        now, seen = slice(i, i + 1), slice(0, i + 1)
        given = q[:, now], k[:, seen], v[:, seen], pos[:, now], pos[:, seen], None
        step = kernel_attention("blocked", scheme, layer, visibility, *given)
        assert (step - exact[:, now]).abs().max() <= 1e-6 * exact.abs().max()


def test_pairs_that_are_refused():
    """Only what cannot be computed is refused; all else is compared above."""
    refused = {(s["scheme"], v["name"]) for s, v in itertools.product(SCHEMES, VISIBILITIES) if not allowed(s, v)}
    one_view = {"learned", "sinusoidal", "fox", "cope"}
    far = {"sinks", "lambda_mask", "rerope"}
    not_relative = {"coca", "tupe", "fire"}
    expected = set(itertools.product(one_view, far)) | {(name, "sinks") for name in not_relative} | {("nope", "rerope")}
    assert refused == expected
    assert {s["scheme"] for s in SCHEMES} == set(positions.scheme_names())
    assert {v["name"] for v in VISIBILITIES} == set(visibilities.visibility_names())
