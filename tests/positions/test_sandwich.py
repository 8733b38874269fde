"""Sandwich: against the product of two sinusoidal embeddings it is made of, and mpmath far out."""

import math

import mpmath
import numpy as np
import pytest
import torch

from coca_train import positions
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise
from tests.positions.test_settings import MODEL


class TestContract(SchemeContract):
    scheme = "sandwich"
    cases = ({"d_bar": 10},)
    angles = True

    def score(self, problem):
        """Known up to a constant of each head, which no softmax sees."""
        r, width = problem.distance_BTS.double(), problem.settings["d_bar"]
        total = sum(torch.cos(r / 10000 ** (2 * i / width)) for i in range(width // 2))
        heads = problem.q_BHTD.shape[1]
        return problem.content_BHTS + total[:, None] / pairwise.by_head([8 * h / heads for h in range(1, heads + 1)])


def sandwich(d_bar=128):
    return {"scheme": "sandwich", "d_bar": d_bar}


def table(n_rows, n_heads=4, d_bar=128):
    scheme = parts.build(sandwich(d_bar), n_heads, 1)
    pos = torch.tensor([[0, n_rows - 1]])
    return scheme.terms(scheme(pos, pos, 2)).distance_HR


@pytest.mark.parametrize(("n_heads", "d_bar"), [(4, 128), (12, 128), (1, 6)])
def test_equals_the_product_of_sinusoidal_embeddings(n_heads, d_bar):
    """The paper's recipe in numpy: embeddings, their products, a compression ratio per head; up to a constant."""
    angle = np.arange(300)[:, None] / 10000 ** (2 * np.arange(d_bar // 2) / d_bar)
    embedding = np.concatenate([np.sin(angle), np.cos(angle)], -1)
    heads = (embedding @ embedding.T)[None] / (np.arange(1, n_heads + 1) * 8 / n_heads)[:, None, None]
    bias_HR = table(300, n_heads, d_bar).double().numpy()
    difference = np.stack([bias_HR[:, m - np.arange(m + 1)] - heads[:, m, : m + 1] for m in (299,)])[0]
    assert np.allclose(difference, difference[:, :1], rtol=0, atol=1e-5)
    assert np.allclose(difference[:, 0], -d_bar / 2 / (np.arange(1, n_heads + 1) * 8 / n_heads), rtol=1e-5)


def test_worked_by_hand():
    """Two cosines (d̄ = 4) at distance 3, two heads: (cos 3 + cos 0.03 - 2) / 4 and / 8."""
    bias_HR = table(4, 2, 4)
    exact = math.cos(3) + math.cos(0.03) - 2
    assert bias_HR[:, 3].tolist() == pytest.approx([exact / 4, exact / 8], rel=1e-6)
    assert bias_HR[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("r", [4095, 32767, 131071])
def test_far_out_it_is_exact(r):
    with mpmath.workdps(30):
        exact = mpmath.fsum(mpmath.cos(r / mpmath.mpf(10000) ** (mpmath.mpf(2 * i) / 128)) for i in range(64)) - 64
    assert table(r + 1, 4)[0, r].item() == pytest.approx(float(exact) / 2, rel=1e-6)


def test_later_heads_are_compressed_more():
    bias_HR = table(100, 8)
    for h in range(8):
        assert torch.allclose(bias_HR[h] * (h + 1), bias_HR[0], rtol=1e-6)


def test_nothing_is_learned():
    scheme = parts.build(sandwich())
    assert not [*scheme.parameters(), *scheme.layer().parameters()]


def test_an_odd_width_is_a_problem():
    assert positions.settings(sandwich()).problems(MODEL) == []
    ((key, _, fix),) = positions.settings(sandwich(9)).problems(MODEL)
    assert (key, fix) == ("position.d_bar", "position.d_bar=10")
