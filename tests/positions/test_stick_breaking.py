"""Stick-breaking: shares of what nearer keys have left, and the rest that goes nowhere."""

import math

import pytest
import torch

from coca_train.attention.kernels import KERNELS
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import part_of
from coca_train.testing import parts
from coca_train.testing.problem import attend
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.positions import pairwise


def stick(sees_itself=False):
    return {"scheme": "stick_breaking", "sees_itself": sees_itself}


def shown(problem):
    """Which keys may take a share: those seen, but for the query's own where that is left out."""
    n_queries, n_keys = problem.seen_BTS.shape[1:]
    own_TS = torch.eye(n_keys, dtype=torch.bool)[n_keys - n_queries :]
    return problem.seen_BTS if problem.settings["sees_itself"] else problem.seen_BTS & ~own_TS


def kept(problem):
    """log(1 - σ(a)) of every key that may take a share, 0 of the others."""
    return torch.log(1 - torch.sigmoid(problem.content_BHTS)) * shown(problem)[:, None]


def attended(kernel, settings, q_BTHD, k_BSGK, v_BSGD):
    pos, (_, n_tokens, heads, width) = parts.start(q_BTHD.shape[1]), q_BTHD.shape
    mapped = parts.mapped(parts.build(settings, heads, k_BSGK.shape[2], width), q_BTHD, k_BSGK, pos, pos, n_tokens)
    (layout,) = AttentionPattern(None).layouts(pos, pos)
    return KERNELS[kernel]([part_of(mapped, layout)], v_BSGD, width**-0.5)


class TestContract(SchemeContract):
    scheme = "stick_breaking"
    cases = [stick(), stick(sees_itself=True)]

    def score(self, problem):
        """log of σ(a), and of what the keys between it and the query have left."""
        s_S1, l_1L = pairwise.key_pairs(problem)
        nearer_BHTS = torch.einsum("bhtl,sl->bhts", kept(problem), (l_1L > s_S1).double())
        share_BHTS = torch.log(torch.sigmoid(problem.content_BHTS)) + nearer_BHTS
        return share_BHTS.masked_fill(~shown(problem)[:, None], -math.inf)

    def rest(self, problem):
        return kept(problem).sum(-1)


@pytest.mark.parametrize(("name", "sees_itself"), [("stick_breaking", False), ("stick_breaking_self", True)])
@pytest.mark.parametrize("kernel", ["eager", "blocked"])
def test_numbers_from_outside(name, sees_itself, kernel):
    """Shares, the rest, and what they make of the values: a value is a unit vector, so the output is the shares."""
    inputs, _ = case("stick_breaking")
    _, expected = case(name)
    q, k = (tensor(inputs[each])[None, :, None] for each in ("q_TD", "k_TD"))
    unit_BSGD = torch.eye(q.shape[1]).double()[None, :, None]
    weight_TT = attended(kernel, stick(sees_itself), q, k, unit_BSGD)[0, :, 0]
    assert same(weight_TT, expected["weight_TT"])
    assert same(1 - weight_TT.sum(-1), expected["rest_T"])


def test_a_softmax_with_a_key_more_is_the_definition():
    """Of the test's own reference: shares that add up to one with the rest are what they are."""
    shares = torch.tensor([[0.5, 0.25, 0.125]]).double()
    out = attend(shares.log()[None, None], torch.eye(3).double()[None, :, None], torch.ones(1, 1, 1, 3) > 0,
                 rest_BHT=torch.tensor(0.125).double().log()[None, None, None])  # fmt: skip
    torch.testing.assert_close(out[0, 0, 0], shares[0])


def test_a_document_begins_with_nothing():
    """Where no key may take a share, the output is zero, and finite gradients go back."""
    q, k, v = parts.random_qkv(parts.build(stick()), 5)
    out = attended("blocked", stick(), q, k, v)
    assert (out[:, 0] == 0).all() and (out[:, 1:] != 0).any()
    out.square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))
