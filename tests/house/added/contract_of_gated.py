"""Gated, pair by pair, and one pair by hand."""

import math

import pytest
import torch

from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract


class TestContract(SchemeContract):
    scheme = "gated"
    cases = ({"power": 2.0},)
    own = {"gate.weight": (4, 24), "strength.a": (4,)}

    def score(self, problem):
        w_HC, a_H = problem.parameters["gate.weight"], problem.parameters["strength.a"]
        open_BHS = 1 / (1 + torch.exp(-torch.einsum("bsc,hc->bhs", problem.x_BSC, w_HC)))
        far_BTS = torch.log(1 + problem.settings["power"] * problem.distance_BTS)
        return problem.content_BHTS - a_H[:, None, None] ** 2 * far_BTS[:, None] * open_BHS[:, :, None]


def test_one_pair_by_hand():
    """w = 0: every gate is at one half; a = 2: twice the logarithm of 1 + 7."""
    scheme = parts.build({"scheme": "gated", "power": 1.0})
    layer = parts.layer_of(scheme)
    layer.gate.weight.data.zero_()
    layer.strength.a.data.fill_(2.0)
    q, k, _ = (x.detach() * 0 for x in parts.random_qkv(scheme, 8))
    scores = parts.dense_scores(scheme, q, k, parts.start(8), parts.start(8), 8, layer)
    assert scores[0, 0, 7, 0].item() == pytest.approx(-2 * math.log(8), rel=1e-6)
