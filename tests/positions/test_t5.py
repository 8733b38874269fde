"""T5's biases: buckets and values against two independent implementations."""

import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import RelativePositionBias

from coca_train import positions
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise
from tests.positions.test_settings import MODEL


class TestContract(SchemeContract):
    scheme = "t5"
    cases = ({"n_buckets": 8, "max_distance": 10}, {"n_buckets": 7, "max_distance": 128})
    shared = {"table": (8, 4)}

    def score(self, problem):
        return problem.content_BHTS + pairwise.bucket_bias(problem)


def t5(n_buckets=32, max_distance=128):
    return {"scheme": "t5", "n_buckets": n_buckets, "max_distance": max_distance}


def bias(scheme, n_tokens):
    """(H, T, S) as a kernel would add it; future keys have distance 0."""
    zeros = torch.zeros(1, n_tokens, scheme.shape.n_heads, scheme.shape.head_dim)
    pos = parts.start(n_tokens)
    return parts.dense_scores(scheme, zeros, zeros[:, :, :2], pos, pos, n_tokens)[0]


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional"),
    [(32, 128, False), (16, 50, False), (7, 300, False), (32, 128, True), (6, 300, True)],
)
def test_equals_transformers(n_buckets, max_distance, bidirectional):
    """Its decoder, and its encoder, which has buckets for later keys."""
    config = T5Config(
        d_model=64,
        num_heads=4,
        d_kv=16,
        is_decoder=not bidirectional,
        relative_attention_num_buckets=n_buckets,
        relative_attention_max_distance=max_distance,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    scheme = parts.build(t5(n_buckets, max_distance), bidirectional=bidirectional).float()
    theirs.relative_attention_bias.weight.data.copy_(scheme.table)
    ours, wanted = bias(scheme, 400), theirs.compute_bias(400, 400)[0]
    assert torch.equal(ours, wanted) if bidirectional else torch.equal(ours.tril(), wanted.tril())


def test_equals_x_transformers():
    theirs = RelativePositionBias(scale=1.0, causal=True, heads=4)
    scheme = parts.build(t5()).float()
    theirs.relative_attention_bias.weight.data.copy_(scheme.table)
    assert torch.equal(bias(scheme, 300).tril(), theirs(300, 300).tril())


def test_buckets_worked_by_hand():
    """Four buckets up to distance 8: 0 and 1 alone, then 2 … 3 (2·4^(1/2) = 4) and 4 … ; the table ends at 8."""
    scheme = parts.build(t5(4, 8))
    scheme.table.data.copy_(torch.arange(4.0)[:, None] + torch.tensor([0.0, 10, 20, 30]))
    pos = parts.start(3)
    buckets_HR = scheme.terms(scheme(pos, pos, 3)).distance_HR
    assert buckets_HR[0].tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 3]
    assert buckets_HR[3].tolist() == [30, 31, 32, 32, 33, 33, 33, 33, 33]


def test_distances_beyond_the_table_share_the_last_bucket():
    scheme = parts.build(t5())
    far = bias(scheme, 200)
    assert torch.equal(far[:, 199, 0], scheme.table[31])
    assert torch.equal(far[:, 128, 0], scheme.table[31])
    assert torch.equal(far[:, 15, 0], scheme.table[15])


def test_a_bucket_gets_the_gradient_of_all_its_distances():
    scheme = parts.build(t5(4, 8))
    pos = parts.start(3)
    scheme.terms(scheme(pos, pos, 3)).distance_HR.sum().backward()
    assert scheme.table.grad.tolist() == [[1] * 4, [1] * 4, [2] * 4, [5] * 4]


def test_buckets_that_would_hold_nothing_are_problems():
    assert positions.settings(t5()).problems(MODEL) == []
    ((key, _, _),) = positions.settings(t5(32, 16)).problems(MODEL)
    assert key == "position.max_distance"
