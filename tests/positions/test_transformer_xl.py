"""Transformer-XL's relative scores, against XLNet's implementation of them and numbers in mpmath."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch
from pydantic import ValidationError
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from coca_train import positions
from coca_train.positions._waves import waves
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise
from tests.positions.test_settings import MODEL

SETTINGS = {"scheme": "transformer_xl", "shared": True, "memory_len": 0}


class TestContract(SchemeContract):
    scheme = "transformer_xl"
    cases = ({"shared": True, "memory_len": 0}, {"shared": False, "memory_len": 0})
    shared = {"u": (4, 16), "v": (4, 16)}
    own = {"w_r": (64, 24)}
    angles = True

    def score(self, problem):
        u, v, w_r = (problem.parameters[name] for name in ("u", "v", "w_r"))
        distance_BTS = problem.m_BTS - problem.n_BTS if problem.bidirectional else problem.distance_BTS
        far_BTSHD = (pairwise.sinusoid(distance_BTS, w_r.shape[1]) @ w_r.T).unflatten(-1, u.shape)
        far_BTSHD = far_BTSHD.expand(len(problem.q_BHTD), -1, -1, -1, -1)
        with_content = torch.einsum("bhtd,bhsd->bhts", problem.q_BHTD + u[:, None], problem.k_BHSK)
        with_distance = torch.einsum("bhtd,btshd->bhts", problem.q_BHTD + v[:, None], far_BTSHD)
        return (with_content + with_distance) / math.sqrt(problem.q_BHTD.shape[-1])


@pytest.fixture(params=[True, False], ids=["shared", "per_layer"])
def scheme(request):
    return parts.build(SETTINGS | {"shared": request.param})


def xlnet(scheme, layer):
    """XLNet's attention with the layer's parameters (u = r_w_bias, v = r_r_bias), its r[c, h, d] = W_R[h·D + d, c],
    and its maker of sinusoids."""
    shape = scheme.shape
    config = XLNetConfig(
        vocab_size=8,
        d_model=shape.n_heads * shape.head_dim,  # XLNet derives the head's width; W_R is given its own input width
        n_head=shape.n_heads,
        n_layer=1,
        d_inner=8,
        attn_type="uni",
        dropout=0.0,
    )
    attention = XLNetRelativeAttention(config).double()
    biases = scheme if scheme.settings.shared else layer
    attention.r_w_bias.data, attention.r_r_bias.data = biases.u.data, biases.v.data
    weight = layer.w_r.detach().unflatten(0, (shape.n_heads, shape.head_dim)).permute(2, 0, 1)
    encoder = XLNetModel(config)
    encoder.d_model = shape.d_model
    return attention, weight, encoder


@pytest.mark.parametrize(("n_queries", "memory"), [(6, 0), (4, 5), (1, 8)])
def test_equal_to_xlnet(scheme, n_queries, memory):
    """Scores by rel_attn_core with its shift, sinusoids by relative_positional_encoding; with a memory in front."""
    layer = parts.layer_of(scheme)
    n_keys = n_queries + memory
    q, k, v = (x.detach() for x in parts.random_qkv(scheme, n_keys, 2))
    pos = parts.start(n_keys)
    mine = parts.dense_attention(scheme, q[:, memory:], k, v, pos[:, memory:], pos, n_keys, layer)
    attention, weight, encoder = xlnet(scheme, layer)
    s = encoder.relative_positional_encoding(n_queries, n_keys, bsz=1).double()  # distances n_keys … 0
    r_head = torch.einsum("ibc,chd->ibhd", s, weight).expand(-1, 2, -1, -1)
    heads = [x.repeat_interleave(4 // x.shape[2], 2).transpose(0, 1) for x in (q[:, memory:], k, v)]
    mask = torch.ones(n_queries, n_keys, dtype=torch.float64).triu(memory + 1)[:, :, None, None]
    theirs = attention.rel_attn_core(*heads, r_head, attn_mask=mask.expand(-1, -1, 2, 4)).transpose(0, 1)
    assert torch.allclose(mine, theirs, rtol=0, atol=1e-6)  # their sinusoids are float32, and so are ours
    assert (mine - theirs).abs().mean() < 1e-7


def test_sinusoids_are_exact_to_float32():
    """mpmath, far out as well: the angle r·θ is rounded to float32 before its sine."""
    table = waves(torch.arange(32768), 10000.0, 6)
    for r in (0, 1, 2, 100, 4097, 32767):
        angles = [mpmath.mpf(r) / mpmath.mpf(10000) ** (mpmath.mpf(2 * i) / 6) for i in range(3)]
        exact = [float(f(a)) for f in (mpmath.sin, mpmath.cos) for a in angles]
        assert table[r].tolist() == pytest.approx(exact, abs=1e-7 + r * 2**-24)
    assert table.dtype == torch.float32


def test_one_pair_by_hand():
    """One head of width 2, d_model 2: s_3 = (sin 3, cos 3)."""
    scheme = parts.build(SETTINGS, 1, 1, 2, 2)
    layer = parts.layer_of(scheme)
    scheme.u.data, scheme.v.data = torch.tensor([[[1.0, -2.0]], [[0.5, 3.0]]], dtype=torch.float64)
    layer.w_r.data = torch.tensor([[2.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    q, k = (torch.tensor(x, dtype=torch.float64).view(1, 1, 1, 2) for x in ([1.0, 4.0], [-3.0, 0.25]))
    score = parts.dense_scores(scheme, q, k, torch.tensor([[8]]), torch.tensor([[5]]), 9, layer)
    content = (1 + 1) * -3 + (4 - 2) * 0.25
    position = (1 + 0.5) * 2 * math.sin(3) + (4 + 3) * (math.sin(3) - math.cos(3))
    assert score.item() == pytest.approx((content + position) / math.sqrt(2), abs=1e-6)


def test_rows_for_every_distance_in_hand(scheme):
    """A memory or a cache in front makes more distances than queries; packed rows restart and make fewer."""
    assert scheme(parts.start(4, 9), parts.start(13), 13).s_RC.shape == (13, 24)
    packed = torch.tensor([[0, 1, 2, 0, 1]])
    assert scheme(packed, packed, 5).s_RC.shape == (3, 24)
    assert scheme(torch.tensor([[2]]), torch.tensor([[7]]), 8).s_RC.shape == (1, 24)


def test_memory_len_is_the_schemes():
    assert parts.build(SETTINGS | {"memory_len": 12}).memory_len == 12
    with pytest.raises(ValidationError, match="memory_len"):
        positions.settings(SETTINGS | {"memory_len": -1})


def test_an_odd_width_is_a_problem():
    settings = positions.settings(SETTINGS)
    assert settings.problems(MODEL) == []
    ((key, message, fix),) = settings.problems(replace(MODEL, d_model=63))
    assert (key, fix) == ("model.d_model", "model.d_model=64")
    assert "63 is odd" in message
