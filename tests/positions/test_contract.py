"""What every scheme promises, for each file of positions/schemes/ as its yaml in configs/position/ ships it.

All hooks are called as attention calls them: embeddings, projections, tables, the layer's map, the sum of its terms.
"""

import math

import pytest
import torch

from coca_train import positions
from coca_train.runtime.errors import UserError
from tests.positions import support

SHIPPED = list(support.shipped())
DAPE = dict(SHIPPED)["dape"]
OTHERS = [(f"dape_{bias}", DAPE | {"bias": bias}) for bias in ("alibi", "fire")]  # with other parameters


@pytest.fixture(params=[s for _, s in SHIPPED + OTHERS], ids=[name for name, _ in SHIPPED + OTHERS])
def scheme(request):
    return support.build(request.param)


def end(scheme):
    """Positions there are; without an end, more than any test here uses."""
    return scheme.max_positions or 2**20


def hidden(scheme, n_tokens, dtype=torch.float64, batch=2):
    """Random token embeddings, the same numbers for every dtype up to its rounding."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, n_tokens, scheme.shape.d_model, generator=generator, dtype=torch.float64).to(dtype)


def qkv(scheme, x_BTC, pos_BT):
    """What attention of the first layer makes of embeddings at these positions; v without positions."""
    projections = support.projections(scheme, x_BTC.dtype)
    embedded = scheme.embed(x_BTC, pos_BT)
    values = support.projections(positions.build(positions.settings({"scheme": "nope"}), scheme.shape), x_BTC.dtype)
    return projections.query(embedded), projections.key(embedded), values.key(x_BTC)


def attention(scheme, x_BTC, pos_BT, length, layer=None):
    """Causal attention of the first layer, (B, T, H, D)."""
    return support.dense_attention(scheme, *qkv(scheme, x_BTC, pos_BT), pos_BT, pos_BT, length, layer)


def flat(tables):
    """Every tensor in a nest of tuples."""
    if isinstance(tables, torch.Tensor):
        return [tables]
    return [x for part in tables for x in flat(part)] if isinstance(tables, tuple) else []


def test_every_scheme_is_shipped():
    assert {settings["scheme"] for _, settings in SHIPPED} == set(positions.scheme_names())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_shapes_and_types(scheme, n_tokens, dtype):
    pos, x_BTC = support.start(n_tokens), hidden(scheme, n_tokens, dtype)
    scheme, layer = scheme.to(dtype), support.layer_of(scheme).to(dtype)
    embedded = scheme.embed(x_BTC, pos)
    assert (embedded.shape, embedded.dtype) == (x_BTC.shape, dtype)
    q, k, _ = qkv(scheme, x_BTC, pos)
    q_BTHE, k_BSGE, terms, hooked = support.mapped(scheme, q, k, pos, pos, n_tokens, layer)
    assert q_BTHE.shape[:3] == (2, n_tokens, 4)
    assert k_BSGE.shape[:3] == (2, n_tokens, 2)
    assert q_BTHE.shape[3] == k_BSGE.shape[3] >= scheme.shape.head_dim
    assert q_BTHE.dtype == k_BSGE.dtype == dtype
    assert all(torch.isfinite(x).all() for x in flat((q_BTHE, k_BSGE, terms, hooked)))
    if terms.distance_HR is not None:
        assert terms.distance_HR.dtype == torch.float32  # biases grow with distance: half precision merges them
        assert terms.distance_HR.shape[0] == 4
    for pair, heads in ((terms.query, 4), (terms.key, 2)):
        if pair is not None:
            x_BTHD, e_RHD = pair
            assert x_BTHD.shape[:3] == (2, n_tokens, heads)
            assert x_BTHD.dtype == e_RHD.dtype == dtype
            assert e_RHD.shape[1] in (1, 4)
            assert e_RHD.shape[2] == x_BTHD.shape[3]
    if terms.value_RD is not None:
        assert (terms.value_RD.shape[1:], terms.value_RD.dtype) == ((16,), dtype)
    if hooked is not None:
        assert all(x.dtype == torch.float32 for x in flat(hooked))  # what stands for long sums and positions
        assert all(x.shape[:2] in ((1, n_tokens), (2, n_tokens)) for x in (*hooked.queries, *hooked.keys))


def test_relative_schemes_do_not_see_a_shift_and_others_do(scheme):
    x_BTC, shift = hidden(scheme, 9), min(1000, end(scheme) - 9)
    outputs = [attention(scheme, x_BTC, support.start(9, first), 2000) for first in (0, shift)]
    # angles are float32: at position 1000 they are known to 6e-5
    assert torch.allclose(*outputs, rtol=0, atol=2e-3) == scheme.relative
    if scheme.relative:
        assert shift == 1000
    else:
        assert (outputs[0] - outputs[1]).abs().max() > 0.02


def test_switching_it_off_changes_the_output(scheme):
    x_BTC, pos = hidden(scheme, 9), support.start(9)
    here, nowhere = (attention(scheme, x_BTC, p, 9) for p in (pos, pos * 0))
    assert ((here - nowhere).abs().max() > 1e-3) == scheme.sees_positions
    if scheme.has_effect and not scheme.sees_positions:
        layer = support.layer_of(scheme)
        layer.register_forward_hook(lambda _, given, mapped: mapped._replace(hooked=None))
        assert (here - attention(scheme, x_BTC, pos, 9, layer)).abs().max() > 1e-3


def test_positions_of_the_whole_batch_or_of_each_row(scheme):
    """(1, T) positions serve the batch; (B, T) rows may restart, as packed documents do."""

    def scores(x_BTC, pos_BT):
        return support.dense_scores(scheme, *qkv(scheme, x_BTC, pos_BT)[:2], pos_BT, pos_BT, 6)

    x_BTC = hidden(scheme, 6)
    shared = scores(x_BTC, support.start(6))
    assert torch.allclose(scores(x_BTC, support.start(6, batch=2)), shared, rtol=0, atol=1e-12)
    packed = scores(x_BTC, torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]))
    alone = scores(x_BTC[1:, 3:], support.start(3))
    # tables in float32 may be centred elsewhere when other positions are in hand
    assert torch.allclose(packed[0], shared[0], rtol=0, atol=1e-6)
    assert torch.allclose(packed[1:, :, 3:, 3:], alone, rtol=0, atol=1e-6)


def test_decoding_with_cached_keys_equals_full_recompute(scheme):
    """One query at a time; the cache holds what the key projection gave, and its positions."""
    pos = support.start(11)
    q, k, v = qkv(scheme, hidden(scheme, 11), pos)
    full = support.dense_attention(scheme, q, k, v, pos, pos, 40)
    for i in range(11):
        now, seen = slice(i, i + 1), slice(0, i + 1)
        step = support.dense_attention(scheme, q[:, now], k[:, seen], v[:, seen], pos[:, now], pos[:, seen], 40)
        assert torch.allclose(step, full[:, now], rtol=0, atol=1e-6)


def test_no_state_is_left_behind(scheme):
    """A call at 32k leaves no trace on a call at 512: same bits as a fresh scheme."""
    x_BTC, last = hidden(scheme, 6, torch.float32), min(32768, end(scheme))
    fresh = attention(support.build_typed(scheme), x_BTC, support.start(6), 512)
    attention(scheme, x_BTC, support.start(6, last - 6), 32768)
    assert torch.equal(attention(scheme, x_BTC, support.start(6), 512), fresh)


def test_half_precision_weights_do_not_touch_the_tables(scheme):
    """`model.bfloat16()` and a start on `meta` cannot reach slopes, frequencies or angles: there are no buffers."""
    assert not [*scheme.buffers(), *support.layer_of(scheme).buffers()]
    pos = support.start(2, min(32768, end(scheme)) - 2)
    for table in flat(scheme.bfloat16()(pos, pos, 32768)):
        if table.is_floating_point():
            assert table.dtype in (torch.float32, torch.float64)


def test_every_parameter_is_trained(scheme):
    """None is without gradient, and every gradient is finite. Distance 0 is among the pairs: log 0 would show."""
    layer = support.layer_of(scheme)
    out = attention(scheme, hidden(scheme, 9).requires_grad_(), support.start(9), 9, layer)
    named = [*scheme.named_parameters(), *layer.named_parameters()]
    out.square().sum().backward()
    for name, parameter in named:
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@torch.no_grad()
def test_parameters_are_read_only_where_a_sharded_engine_lends_them(scheme):
    """Shared ones while the tables are made, a layer's own while it maps queries and keys. NaN everywhere else."""
    pos = support.start(9)
    q, k, _ = qkv(scheme, hidden(scheme, 9), pos)
    exact = support.mapped(scheme, q, k, pos, pos, 9)
    tables, layer = scheme(pos, pos, 9), support.layer_of(scheme)
    for parameter in scheme.parameters():
        parameter.fill_(math.nan)
    tokens = support.tokens(layer, k)
    found = layer(scheme, q, k, tables, support.projections(scheme), tokens)
    for parameter in layer.parameters():
        parameter.fill_(math.nan)
    for mine, other in zip(flat(found), flat(exact), strict=True):
        assert torch.equal(mine, other)


def test_parameters_start_as_declared(scheme):
    """Each entry of INITIAL names a parameter and fills it with finite numbers; all chance is the generator's."""
    name = scheme.settings.scheme
    initial = getattr(positions.scheme_module(name), "INITIAL", {})
    forms = [support.build(settings) for _, settings in SHIPPED + OTHERS if settings["scheme"] == name]
    parameters = [p for form in forms for p in (*form.named_parameters(), *form.layer().named_parameters())]
    shapes = {name.rpartition(".")[2]: p.shape for name, p in parameters}
    assert set(initial) <= set(shapes)
    for name, fill in initial.items():
        first, again = torch.full(shapes[name], math.nan), torch.full(shapes[name], math.nan)
        for values in (first, again):
            fill(values, torch.Generator().manual_seed(3))
        assert torch.isfinite(first).all()
        assert torch.equal(first, again)


def test_positions_end_in_words(scheme):
    """A learned table of positions has a last row, and says so; all others have no end."""
    if scheme.max_positions is None:
        return
    for last, n_tokens in ((scheme.max_positions - 1, 2), (scheme.max_positions, 1)):
        pos = support.start(n_tokens, last - n_tokens + 1)
        if last < scheme.max_positions:
            attention(scheme, hidden(scheme, n_tokens), pos, n_tokens)
        else:
            with pytest.raises(UserError, match=r"^E-POS-04 position\.max_len=\d+: .*; .*\. Fix: "):
                attention(scheme, hidden(scheme, n_tokens), pos, n_tokens)
