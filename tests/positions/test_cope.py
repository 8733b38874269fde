"""CoPE: positions that are counts of gates, against a loop, an independent implementation and the dense reference."""

import math

import pytest
import torch

from coca_train.positions.base import Pairs
from coca_train.positions.schemes.cope import COUNT
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise


class TestContract(SchemeContract):
    scheme = "cope"
    cases = [{"n_positions": n} for n in (4, 3, 40)]  # counts that run into the last vector, and that do not
    own = {"e": (4, 16)}

    def score(self, problem):
        """q·e between two whole counts; the count is a sum over the keys back to the key itself."""
        e_PD, (s_S1, l_1L) = problem.parameters["e"], pairwise.key_pairs(problem)
        gate_BHTL = 1 / (1 + torch.exp(-problem.content_BHTS))
        counted_BTSL = (problem.seen_BTS[:, :, None, :] & (l_1L >= s_S1)).double()
        count_BHTS = torch.einsum("btsl,bhtl->bhts", counted_BTSL.expand(len(gate_BHTL), -1, -1, -1), gate_BHTL)
        total, count_BHTS = problem.content_BHTS, count_BHTS.clamp(max=len(e_PD) - 1)
        for p in range(len(e_PD)):  # a tent over each whole count
            weight = (1 - (count_BHTS - p).abs()).clamp(min=0)
            total = total + weight * (problem.q_BHTD @ e_PD[p])[..., None]
        return total


def cope(n_positions=4):
    return {"scheme": "cope", "n_positions": n_positions}


def problem(n_tokens, n_positions):
    scheme = parts.build(cope(n_positions))
    q, k, _ = parts.random_qkv(scheme, n_tokens)
    pos = parts.start(n_tokens)
    layer = parts.layer_of(scheme)
    return layer, q, k, parts.dense_scores(scheme, q, k, pos, pos, n_tokens, layer)


@pytest.mark.parametrize("n_positions", [2, 4, 64])
def test_by_hand(n_positions):
    layer, q, k, scores = problem(6, n_positions)
    for batch, h, m in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(6)).tolist():
        count = 0.0
        for n in range(m, -1, -1):
            content = (q[batch, m, h] @ k[batch, n, h // 2]).item() / 4
            count += 1 / (1 + math.exp(-content))
            place = min(count, n_positions - 1)
            low, high = math.floor(place), math.ceil(place)
            below, above = ((q[batch, m, h] @ layer.e[at]).item() for at in (low, high))
            exact = content + (place - low) * above + (1 - place + low) * below
            assert scores[batch, h, m, n].item() == pytest.approx(exact, abs=1e-11)


@pytest.mark.parametrize("n_positions", [3, 64])
def test_equals_x_transformers(n_positions):
    from x_transformers.x_transformers import CoPE

    layer, q, k, scores = problem(9, n_positions)
    theirs = CoPE(16, 4, n_positions).double()
    theirs.pos_emb.data = layer.e.data
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    content = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(2, 2)) / 4
    masked = content.masked_fill(~causal, -math.inf)
    exact = content + theirs(q.transpose(1, 2), masked)
    torch.testing.assert_close(scores.masked_fill(~causal, 0), exact.masked_fill(~causal, 0))


def test_open_gates_count_tokens_and_shut_ones_none():
    """Gates at 1 give the vectors of 1, 2, 3 … tokens, the query's own included; at 0 all keys stand at 0."""
    by_count = torch.arange(6.0).reshape(1, 1, 1, 6)
    for content, expected in ((1e4, [5, 4, 3, 2, 1]), (-1e4, [0] * 5)):
        given = torch.full((1, 1, 1, 5), content)
        pairs = Pairs(given, None, torch.tensor([[4]]), torch.arange(5)[None], (), (by_count,), ())
        scores, carried = COUNT.scores(pairs, torch.zeros(1, 1, 1, 1))
        assert (scores - given).flatten().tolist() == expected
        assert carried.item() == expected[0]
