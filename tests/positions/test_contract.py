"""What every scheme promises, for each file of positions/schemes/ as its yaml in configs/position/ ships it."""

import pytest
import torch

from coca_train import positions
from tests.positions import support

SHIPPED = list(support.shipped())


@pytest.fixture(params=[settings for _, settings in SHIPPED], ids=[name for name, _ in SHIPPED])
def scheme(request):
    return support.build(request.param)


def test_every_scheme_is_shipped():
    assert {settings["scheme"] for _, settings in SHIPPED} == set(positions.scheme_names())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_shapes_and_types(scheme, n_tokens, dtype):
    pos = support.start(n_tokens)
    q, k, _ = support.random_qkv(scheme, n_tokens, dtype=dtype)
    tables = scheme.tables(pos, pos, n_tokens)
    q_BTHE, k_BSGE = scheme.rotate(q, k, tables)
    assert q_BTHE.shape[:3] == (2, n_tokens, 4)
    assert k_BSGE.shape[:3] == (2, n_tokens, 2)
    assert q_BTHE.shape[3] == k_BSGE.shape[3] >= scheme.shape.head_dim
    assert q_BTHE.dtype == k_BSGE.dtype == dtype
    assert torch.isfinite(q_BTHE).all()
    assert torch.isfinite(k_BSGE).all()
    x_BTC = torch.randn(2, n_tokens, 24)
    assert scheme.embed(x_BTC, pos).shape == x_BTC.shape


def test_relative_schemes_do_not_see_a_shift_and_others_do(scheme):
    q, k, v = support.random_qkv(scheme, 9)
    outputs = [
        support.dense_attention(scheme, q, k, v, support.start(9, first), support.start(9, first), 2000)
        for first in (0, 1000)
    ]
    # angles are float32: at position 1000 they are known to 6e-5
    assert torch.allclose(*outputs, rtol=0, atol=2e-3) == scheme.relative
    if not scheme.relative:
        assert (outputs[0] - outputs[1]).abs().max() > 0.05


def test_switching_it_off_changes_the_output(scheme):
    q, k, v = support.random_qkv(scheme, 9)
    pos = support.start(9)
    here, nowhere = (support.dense_attention(scheme, q, k, v, p, p, 9) for p in (pos, pos * 0))
    assert ((here - nowhere).abs().max() > 1e-3) == scheme.has_effect


def test_positions_of_the_whole_batch_or_of_each_row(scheme):
    """(1, T) positions serve the batch; (B, T) rows may restart, as packed documents do."""
    q, k, _ = support.random_qkv(scheme, 6)
    once, rows = support.start(6), support.start(6, batch=2)
    shared = support.dense_scores(scheme, q, k, once, once, 6)
    assert torch.allclose(support.dense_scores(scheme, q, k, rows, rows, 6), shared, rtol=0, atol=1e-12)
    packed = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]])
    scores = support.dense_scores(scheme, q, k, packed, packed, 6)
    alone = support.dense_scores(scheme, q[1:, 3:], k[1:, 3:], support.start(3), support.start(3), 6)
    assert torch.allclose(scores[0], shared[0], rtol=0, atol=1e-12)
    assert torch.allclose(scores[1:, :, 3:, 3:], alone, rtol=0, atol=1e-12)


def test_no_state_is_left_behind(scheme):
    """A call at 32k leaves no trace on a call at 512: same bits as a fresh scheme."""
    q, k, v = support.random_qkv(scheme, 6, dtype=torch.float32)
    pos = support.start(6)
    far = torch.arange(32762, 32768)[None]
    fresh = support.dense_attention(support.build_typed(scheme), q, k, v, pos, pos, 512)
    support.dense_attention(scheme, q, k, v, far, far, 32768)
    assert torch.equal(support.dense_attention(scheme, q, k, v, pos, pos, 512), fresh)


def test_half_precision_weights_do_not_touch_the_tables(scheme):
    """`model.bfloat16()` and a start on `meta` cannot reach slopes, frequencies or angles: there are no buffers."""
    assert not list(scheme.buffers())
    pos = torch.tensor([[32766, 32767]])
    tables = scheme.bfloat16().tables(pos, pos, 32768)
    for table in flat(tables):
        if table.is_floating_point():
            assert table.dtype in (torch.float32, torch.float64)


def flat(tables):
    """Every tensor in a nest of tuples."""
    if isinstance(tables, torch.Tensor):
        return [tables]
    return [x for part in tables for x in flat(part)] if isinstance(tables, tuple) else []
