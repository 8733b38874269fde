"""Shaw's relative position representations: the equations in plain loops, and what clipping means."""

import math

import pytest
import torch
from pydantic import ValidationError

from coca_train import positions
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract

SETTINGS = {"scheme": "shaw", "max_distance": 3}
T = 7


class TestContract(SchemeContract):
    scheme = "shaw"
    cases = [{"max_distance": 5}, {"max_distance": 40}]
    own = {"keys": (6, 16), "values": (6, 16)}

    def row(self, problem, name):
        return problem.parameters[name][problem.row_BTS(problem.settings["max_distance"])]

    def score(self, problem):
        keys_BTSD = self.row(problem, "keys").expand(len(problem.q_BHTD), -1, -1, -1)
        own = torch.einsum("bhtd,btsd->bhts", problem.q_BHTD, keys_BTSD)
        return problem.content_BHTS + own / math.sqrt(problem.q_BHTD.shape[-1])

    def value(self, problem):
        return self.row(problem, "values")


@pytest.fixture
def scheme():
    return parts.build(SETTINGS)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_scores_and_values_in_plain_loops(scheme):
    """Eq. 3 and 4 with a_mn = keys[min(m - n, 3)], b_mn = values[min(m - n, 3)], one table for all heads."""
    layer = parts.layer_of(scheme)
    q, k, v = (x.detach() for x in parts.random_qkv(scheme, T, 1))
    keys, values = layer.keys.tolist(), layer.values.tolist()
    pos = parts.start(T, 5)
    scores = parts.dense_scores(scheme, q, k, pos, pos, T, layer)[0]
    out = parts.dense_attention(scheme, q, k, v, pos, pos, T, layer)[0]
    for h in range(4):
        for m in range(T):
            row, terms = [], []
            for n in range(m + 1):
                r = min(m - n, 3)
                key = [x + y for x, y in zip(k[0, n, h // 2].tolist(), keys[r], strict=True)]
                row.append(dot(q[0, m, h].tolist(), key) / math.sqrt(16))
                terms.append([x + y for x, y in zip(v[0, n, h // 2].tolist(), values[r], strict=True)])
            assert scores[h, m, : m + 1].tolist() == pytest.approx(row, abs=1e-12)
            weights = [math.exp(x) for x in row]
            expected = [sum(w * t[d] for w, t in zip(weights, terms, strict=True)) / sum(weights) for d in range(16)]
            assert out[m, h].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_row_serves_its_own_distance_and_the_last_all_longer_ones(scheme):
    q, k, _ = parts.random_qkv(scheme, T, 1)
    pos = parts.start(T)
    layer = parts.layer_of(scheme)
    before = parts.dense_scores(scheme, q, k, pos, pos, T, layer)
    r_TT = (pos[:, :, None] - pos[:, None, :]).clamp(min=0)[0]
    for row in range(4):
        changed = parts.layer_of(scheme)
        changed.keys.data[row] += 1.0
        differs = (parts.dense_scores(scheme, q, k, pos, pos, T, changed) != before)[0, 0]
        assert torch.equal(differs, r_TT == row if row < 3 else r_TT >= 3)


def test_only_rows_of_distances_in_hand_get_a_gradient(scheme):
    layer = parts.layer_of(scheme)
    q, k, v = parts.random_qkv(scheme, 3, 1)
    pos = parts.start(3)
    parts.dense_attention(scheme, q, k, v, pos, pos, 3, layer).square().sum().backward()
    for table in (layer.keys, layer.values):
        assert table.grad[:3].abs().amax(1).min() > 0
        assert torch.equal(table.grad[3], torch.zeros(16, dtype=torch.float64))


@pytest.mark.parametrize("wrong", [{"max_distance": 0}, {"max_distance": 2.0}, {}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValidationError, match="max_distance"):
        positions.settings({"scheme": "shaw", **wrong})
