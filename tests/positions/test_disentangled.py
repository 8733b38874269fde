"""Disentangled attention: the equation in plain loops, and DeBERTa's own code where it shares the projections."""

import math

import pytest
import torch
from pydantic import ValidationError
from transformers import DebertaConfig
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position

from coca_train import positions
from coca_train.positions.base import Projections
from coca_train.positions.schemes import disentangled
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract

SETTINGS = {"scheme": "disentangled", "max_distance": 3}
T = 7


class TestContract(SchemeContract):
    scheme = "disentangled"
    cases = [{"max_distance": 5}, {"max_distance": 40}]
    shared = {"p": (6, 24)}

    def score(self, problem):
        far_BTSC = problem.parameters["p"][problem.row_BTS(problem.settings["max_distance"])]
        query_BTSHD, key_BTSGD = problem.project.query(far_BTSC), problem.project.key(far_BTSC)
        key_BTSHD = key_BTSGD.repeat_interleave(query_BTSHD.shape[-2] // key_BTSGD.shape[-2], -2)
        batch = len(problem.q_BHTD)
        to_distance = torch.einsum("bhtd,btshd->bhts", problem.q_BHTD, key_BTSHD.expand(batch, -1, -1, -1, -1))
        from_distance = torch.einsum("btshd,bhsd->bhts", query_BTSHD.expand(batch, -1, -1, -1, -1), problem.k_BHSK)
        return problem.content_BHTS + (to_distance + from_distance) / math.sqrt(problem.q_BHTD.shape[-1])


@pytest.fixture
def scheme():
    return parts.build(SETTINGS)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_scores_in_plain_loops(scheme):
    """(q·k + q·W_K p_r + W_Q p_r·k) / √D, key head h // 2."""
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, T, 1))
    pos = parts.start(T, 4)
    scores = parts.dense_scores(scheme, q, k, pos, pos, T)[0]
    project = parts.projections(scheme)
    as_query, as_key = project.query(scheme.p.detach()), project.key(scheme.p.detach())
    for h in range(4):
        for m in range(T):
            for n in range(m + 1):
                r, query, key = min(m - n, 3), q[0, m, h].tolist(), k[0, n, h // 2].tolist()
                terms = dot(query, key) + dot(query, as_key[r, h // 2].tolist()) + dot(as_query[r, h].tolist(), key)
                assert scores[h, m, n].item() == pytest.approx(terms / math.sqrt(16), abs=1e-12)


@pytest.mark.parametrize("n_tokens", [1, 3, 9])
def test_equal_to_deberta(n_tokens):
    """DeBERTa-v1 with its positions' projections set to those of the tokens. Its spans have max_distance + 1 rows
    to each side, row span + r for r = m - n; it divides by √(3D), so its scores are ours divided by √3."""
    scheme = parts.build(SETTINGS, n_heads=3, n_kv_heads=3, head_dim=8)
    project = parts.projections(scheme)
    config = DebertaConfig(
        hidden_size=24,
        num_attention_heads=3,
        relative_attention=True,
        max_relative_positions=4,
        pos_att_type=["c2p", "p2c"],
        hidden_dropout_prob=0.0,
    )
    theirs = DisentangledSelfAttention(config).double()
    unit = torch.eye(24, dtype=torch.float64)
    theirs.pos_proj.weight.data = project.key(unit).flatten(-2).T
    theirs.pos_q_proj.weight.data, theirs.pos_q_proj.bias.data = project.query(unit).flatten(-2).T, torch.zeros(24)
    theirs.double()
    rows = torch.cat((torch.full((4, 24), torch.nan, dtype=torch.float64), scheme.p.detach()))
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, n_tokens, 2))
    pos = parts.start(n_tokens)
    mine = parts.dense_scores(scheme, q, k, pos, pos, n_tokens)
    query, key = q.transpose(1, 2) / math.sqrt(3 * 8), k.transpose(1, 2)
    relative = build_relative_position(query, key)
    bias = theirs.disentangled_att_bias(query, key, relative, rows.nan_to_num(9.0), scale_factor=3)
    seen = torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()
    expected = (query @ key.mT + bias) * math.sqrt(3)
    assert torch.allclose(mine[..., seen], expected[..., seen], rtol=0, atol=1e-6)


def test_a_row_serves_its_own_distance_and_the_last_all_longer_ones(scheme):
    q, k, _ = parts.random_qkv(scheme, T, 1)
    pos = parts.start(T)
    before = parts.dense_scores(scheme, q, k, pos, pos, T)
    r_TT = (pos[:, :, None] - pos[:, None, :]).clamp(min=0)[0]
    for row in range(4):
        changed = parts.build(SETTINGS)
        changed.p.data[row] += 1.0
        differs = (parts.dense_scores(changed, q, k, pos, pos, T) != before)[0, 0]
        assert torch.equal(differs, r_TT == row if row < 3 else r_TT >= 3)


def test_gradients_add_up_in_float32(scheme):
    """Layers of a bf16 model give bf16 gradients to one float32 table; only the sum is rounded."""
    pos = parts.start(T)
    assert scheme.bfloat16()(pos, pos, T).dtype == torch.float32
    assert scheme.double()(pos, pos, T).dtype == torch.float64


def test_projections_get_the_dtype_of_the_queries(scheme):
    """A matrix product of two dtypes is an error in torch: what the layer's own W_Q and W_K take is q's dtype."""
    q, k, _ = parts.random_qkv(scheme, T, dtype=torch.bfloat16)
    pos, project = parts.start(T), parts.projections(scheme, torch.bfloat16)
    seen = []

    def noted(projection):
        return lambda x: (seen.append(x.dtype), projection(x))[1]

    scheme.layer()(scheme, q, k, scheme(pos, pos, T), Projections(noted(project.query), noted(project.key)))
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_the_table_starts_with_variance_one():
    table = torch.empty(200, 50)
    disentangled.Scheme.INITIAL["p"](table, torch.Generator().manual_seed(0))
    assert table.std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("wrong", [{"max_distance": 0}, {"max_distance": 2.0}, {}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValidationError, match="max_distance"):
        positions.settings({"scheme": "disentangled", **wrong})
