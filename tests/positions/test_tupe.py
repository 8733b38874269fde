"""TUPE-R: its three terms in plain loops, T5's buckets in the third, and the end of its table."""

import math

import pytest
import torch
from pydantic import ValidationError
from transformers.models.t5.modeling_t5 import T5Attention

from coca_train import positions
from coca_train.positions.schemes import tupe
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise
from tests.positions.test_settings import MODEL

SETTINGS = {"scheme": "tupe", "max_len": 24, "n_buckets": 8, "max_distance": 20}
T = 23


class TestContract(SchemeContract):
    scheme = "tupe"
    cases = ({"max_len": 17, "n_buckets": 8, "max_distance": 10},)
    shared = {"p": (17, 24), "u_q": (64, 24), "u_k": (32, 24), "table": (8, 4)}

    def score(self, problem):
        p, u_q, u_k = (problem.parameters[name] for name in ("p", "u_q", "u_k"))
        heads, dim = problem.q_BHTD.shape[1], problem.q_BHTD.shape[-1]
        query_BTSHD = (p[problem.m_BTS] @ u_q.T).unflatten(-1, (heads, dim))
        key_BTSGD = (p[problem.n_BTS] @ u_k.T).unflatten(-1, (-1, dim))
        key_BTSHD = key_BTSGD.repeat_interleave(heads // key_BTSGD.shape[-2], -2)
        untied = torch.einsum("btshd,btshd->bhts", query_BTSHD, key_BTSHD)
        return problem.content_BHTS / math.sqrt(2) + untied / math.sqrt(2 * dim) + pairwise.bucket_bias(problem)


@pytest.fixture
def scheme():
    return parts.build(SETTINGS)


def times(matrix, vector):
    return [sum(x * y for x, y in zip(row, vector, strict=True)) for row in matrix]


def test_scores_in_plain_loops(scheme):
    """q·k / √(2D) + (U_Q p_m)·(U_K p_n) / √(2D) + bias, key head h // 2, T5's own bucket function."""
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, T, 1))
    pos = parts.start(T)
    scores = parts.dense_scores(scheme, q, k, pos, pos, T)[0]
    p, u_q, u_k, table = (getattr(scheme, name).tolist() for name in ("p", "u_q", "u_k", "table"))
    bucket = T5Attention._relative_position_bucket(-torch.arange(T), False, 8, 20).tolist()
    query, key = [times(u_q, row) for row in p], [times(u_k, row) for row in p]
    for h in range(4):
        g = h // 2
        for m in range(T):
            for n in range(m + 1):
                content = times([q[0, m, h].tolist()], k[0, n, g].tolist())[0]
                untied = times([query[m][16 * h : 16 * h + 16]], key[n][16 * g : 16 * g + 16])[0]
                expected = (content + untied) / math.sqrt(32) + table[bucket[m - n]][h]
                assert scores[h, m, n].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("late", ["queries", "keys"])
def test_beyond_its_table_is_an_error(scheme, late):
    assert scheme.max_positions == 24
    inside, beyond = parts.start(3, 21), parts.start(3, 22)
    scheme(inside, inside, 24)
    with pytest.raises(UserError, match=r"E-POS-04 position\.max_len=24: tupe has no row for position 24;"):
        scheme(*((beyond, inside) if late == "queries" else (inside, beyond)), 25)


def test_positions_start_with_variance_one():
    table = torch.empty(200, 50)
    tupe.Scheme.INITIAL["p"](table, torch.Generator().manual_seed(0))
    assert table.std().item() == pytest.approx(1.0, abs=0.02)
    assert table.mean().item() == pytest.approx(0.0, abs=0.02)


def test_settings_that_mean_nothing_are_refused():
    for wrong in ({"max_len": 0}, {"n_buckets": 1}, {"max_len": 24.0}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            positions.settings(SETTINGS | wrong)
    assert positions.settings(SETTINGS).problems(MODEL) == []
    ((key, _, fix),) = positions.settings(SETTINGS | {"max_distance": 4}).problems(MODEL)
    assert (key, fix) == ("position.max_distance", "position.max_distance=32")
