"""What holds for every scheme whose scores come from learned vectors: shaw, transformer_xl, tupe, disentangled."""

from dataclasses import replace

import pytest
import torch

from coca_train.models.transformer import Transformer
from coca_train.positions import visibilities
from tests.positions import support
from tests.positions.test_settings import MODEL

SCHEMES = {
    "shaw": {"max_distance": 4},
    "transformer_xl": {"memory_len": 0},
    "tupe": {"max_len": 3000, "n_buckets": 8, "max_distance": 20},
    "disentangled": {"max_distance": 4},
}
T = 9


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return support.build({"scheme": request.param, **SCHEMES[request.param]})


def parameters(scheme, layer):
    return dict([*scheme.named_parameters(), *layer.named_parameters()])


def everything(mapped):
    """Every tensor of a Mapped, by name."""
    terms = mapped.terms._asdict()
    pairs = {f"{name}[{i}]": x for name in ("query", "key") for i, x in enumerate(terms.pop(name) or ())}
    named = {"q": mapped.q_BTHE, "k": mapped.k_BSGE, **pairs, **terms}
    return {name: x for name, x in named.items() if x is not None}


def test_scores_depend_on_distance_alone_where_the_scheme_says_so(scheme):
    q, k, _ = support.random_qkv(scheme, T)
    here, there = (support.dense_scores(scheme, q, k, p, p, T) for p in (support.start(T), support.start(T, 1000)))
    assert torch.allclose(here, there, rtol=0, atol=1e-12) == scheme.relative


def test_every_parameter_of_every_distance_in_hand_gets_a_gradient(scheme):
    layer = support.layer_of(scheme)
    q, k, v = support.random_qkv(scheme, T)
    pos = support.start(T)
    support.dense_attention(scheme, q, k, v, pos, pos, T, layer).square().sum().backward()
    for name, parameter in parameters(scheme, layer).items():
        rows = parameter.grad.flatten(1).abs().amax(1)
        in_hand = {"p": min(len(rows), T), "table": 6}.get(name, len(rows))  # distance 8 is in T5's bucket 5 of 8
        assert rows[:in_hand].min() > 0, name
        assert not rows[in_hand:].any(), name


def test_gradients_are_those_of_finite_differences(scheme):
    layer = support.layer_of(scheme)
    q, k, v = support.random_qkv(scheme, 5, 1)
    pos = support.start(5)

    def loss():
        return support.dense_attention(scheme, q, k, v, pos, pos, 5, layer).square().sum()

    loss().backward()
    for name, parameter in {"q": q, "k": k, **parameters(scheme, layer)}.items():
        place = torch.unravel_index(parameter.grad.abs().argmax(), parameter.shape)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter[place] += step
                values.append(loss().item())
                parameter[place] -= step
        assert parameter.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5), name


def test_the_last_query_alone_sees_what_it_saw_among_all(scheme):
    """A cached step: one query, all keys."""
    q, k, v = support.random_qkv(scheme, T)
    pos = support.start(T, 3)
    full = support.dense_attention(scheme, q, k, v, pos, pos, T)
    for n in range(1, T + 1):
        here = slice(n - 1, n)
        last = support.dense_attention(scheme, q[:, here], k[:, :n], v[:, :n], pos[:, here], pos[:, :n], n)
        assert torch.allclose(last, full[:, here], rtol=0, atol=1e-12)


def test_later_tokens_change_nothing_before_them(scheme):
    q, k, v = (x.detach() for x in support.random_qkv(scheme, T))
    pos = support.start(T)
    before = support.dense_attention(scheme, q, k, v, pos, pos, T)
    for x in (q, k, v):
        x[:, 6] += 1.0
    after = support.dense_attention(scheme, q, k, v, pos, pos, T)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_of_half_precision_gets_vectors_of_half_precision(scheme, dtype):
    """Products run in q's dtype; a bias by distance stays float32. float32 parameters under bf16 queries too."""
    q, k, _ = support.random_qkv(scheme, T, dtype=dtype)
    pos = support.start(T)
    exact = support.dense_scores(scheme, q.double(), k.double(), pos, pos, T)
    for parameter_dtype in (dtype, torch.float32):
        layer = support.layer_of(scheme).to(parameter_dtype)
        named = everything(support.mapped(scheme.to(parameter_dtype), q, k, pos, pos, T, layer))
        assert {name: x.dtype for name, x in named.items()} == {
            name: torch.float32 if name == "distance_HR" else dtype for name in named
        }
        scores = support.dense_scores(scheme, q, k, pos, pos, T, layer)
        assert (scores - exact).abs().max() <= {4: 1e-5, 2: 3e-2}[dtype.itemsize] * exact.abs().max()


def test_nothing_that_leaves_a_call_is_a_parameter(scheme):
    """ZeRO 3 takes the weights back when a module's call ends: the kernel must not read them."""
    layer = support.layer_of(scheme)
    q, k, _ = support.random_qkv(scheme, T)
    pos = support.start(T)
    tables = scheme(pos, pos, T)
    kept = support.mapped(scheme, q, k, pos, pos, T, layer)
    for parameter in scheme.parameters():
        parameter.data.fill_(torch.nan)
    mapped = layer(scheme, q, k, tables, support.projections(scheme))
    for parameter in layer.parameters():
        parameter.data.fill_(torch.nan)
    for (name, before), after in zip(everything(kept).items(), everything(mapped).values(), strict=True):
        assert torch.equal(before, after), name


def test_terms_are_told_apart_by_head(scheme):
    """No two query heads share their scores: heads, groups and rows of W are not mixed up."""
    q, k, _ = (x[:, :, :1].expand_as(x) for x in support.random_qkv(scheme, T))
    pos = support.start(T)
    scores = support.dense_scores(scheme, q, k, pos, pos, T)
    shared = scheme.settings.scheme == "shaw"  # one table for all heads, by definition
    for h in range(1, 4):
        assert torch.allclose(scores[:, 0], scores[:, h]) == shared


def test_names_in_a_model_and_gradients_through_it(scheme):
    """What a checkpoint, a freezing pattern and the optimizer see; one step's loss reaches all of it."""
    model = Transformer(
        replace(MODEL, n_layers=2, n_kv_heads=2),
        scheme.settings,
        visibilities.settings({"name": "causal"}),
        vocab_size=32,
        max_seq_len=T,
    )
    support.randomise(model)
    tokens = torch.arange(2 * (T + 1)).view(2, -1)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    named = {name: p for name, p in model.named_parameters() if "position" in name}
    own = [name for name, _ in scheme.layer().named_parameters()]
    assert set(named) == {f"position.{name}" for name, _ in scheme.named_parameters()} | {
        f"blocks.{i}.attention.position.{name}" for i in range(2) for name in own
    }
    assert named
    for name, parameter in named.items():
        assert parameter.grad.abs().max() > 0, name
