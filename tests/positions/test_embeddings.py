"""Absolute positions added to the embeddings: learned (and its end) and sinusoidal (against transformers)."""

import math
from dataclasses import replace

import pytest
import torch
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from coca_train import positions
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support
from tests.positions.test_settings import MODEL


class TestLearned(SchemeContract):
    scheme = "learned"
    cases = ({"max_len": 17},)
    shared = {"table.weight": (17, 24)}

    def score(self, problem):
        return problem.content_BHTS

    def embed(self, settings, x_BTC, pos_BT, parameters):
        return x_BTC + torch.stack([parameters["table.weight"][row] for row in pos_BT.tolist()])


class TestSinusoidal(SchemeContract):
    scheme = "sinusoidal"
    cases = ({"theta": 100.0, "scale": 0.25},)

    def score(self, problem):
        return problem.content_BHTS

    def embed(self, settings, x_BTC, pos_BT, parameters):
        return x_BTC + settings["scale"] * pairwise.sinusoid(pos_BT, x_BTC.shape[-1], settings["theta"])


def learned(max_len=12):
    return {"scheme": "learned", "max_len": max_len}


def sinusoidal(theta=10000.0, scale=1.0):
    return {"scheme": "sinusoidal", "theta": theta, "scale": scale}


def test_learned_adds_the_row_of_each_position():
    scheme = parts.build(learned())
    ((name, table),) = scheme.named_parameters()
    assert (name, table.shape) == ("table.weight", (12, 24))
    pos, x = torch.tensor([[0, 1, 2, 0, 1, 11]]), torch.randn(2, 6, 24, dtype=torch.float64)
    assert torch.equal(parts.embed(scheme, x, pos) - x, x + table[pos[0]] - x)


def test_learned_trains_only_the_rows_it_used():
    scheme = parts.build(learned())
    parts.embed(scheme, torch.zeros(1, 3, 24, dtype=torch.float64), torch.tensor([[2, 5, 5]])).sum().backward()
    assert scheme.table.weight.grad[:, 0].tolist() == [0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("settings", [learned(), sinusoidal()], ids=support.label)
def test_attention_itself_sees_no_positions(settings):
    """Queries, keys and scores are as in nope: a fused kernel runs them."""
    scheme = parts.build(settings)
    q, k, _ = parts.random_qkv(scheme, 5)
    pos = parts.start(5)
    mapped = parts.mapped(scheme, q, k, pos, pos, 5)
    assert mapped.q_BTHE is q
    assert mapped.k_BSGE is k
    assert mapped.terms == (None, None, None, None)


def test_sinusoidal_equals_transformers():
    """Marian's table: sines in the first half, cosines in the second."""
    embedding = MarianSinusoidalPositionalEmbedding(600, 24)
    rows = parts.embed(parts.build(sinusoidal()), torch.zeros(1, 600, 24), parts.start(600))
    assert torch.allclose(rows[0], embedding.create_weight(), rtol=0, atol=4e-5)  # 600 radians in float32


@pytest.mark.parametrize("theta", [10000.0, 500.0])
@pytest.mark.parametrize("m", [0, 1, 7, 32767, 131071])
def test_sinusoidal_worked_by_hand(m, theta):
    row = parts.embed(parts.build(sinusoidal(theta, 0.5)), torch.zeros(1, 1, 24), torch.tensor([[m]]))[0, 0].tolist()
    for j in range(12):
        angle = m * theta ** (-2 * j / 24)
        assert row[j] == pytest.approx(0.5 * math.sin(angle), abs=1e-6 + 1e-7 * m)
        assert row[12 + j] == pytest.approx(0.5 * math.cos(angle), abs=1e-6 + 1e-7 * m)


def test_sinusoidal_is_formed_in_float32_and_cast_once():
    """Neighbours at 32k differ, and the sum is rounded after the addition."""
    scheme, pos = parts.build(sinusoidal()), torch.tensor([[32766, 32767]])
    x = torch.randn(1, 2, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = parts.embed(scheme, x, pos)
    assert torch.equal(rows, parts.embed(scheme, x.float(), pos).bfloat16())
    waves = parts.embed(scheme, torch.zeros(1, 2, 24, dtype=torch.bfloat16), pos)[0]
    assert waves[1, 0].item() == pytest.approx(math.sin(32767), abs=0.01)
    assert (waves[0] - waves[1]).abs().max() > 0.5


def test_sinusoidal_needs_an_even_width():
    settings = positions.settings(sinusoidal())
    assert settings.problems(MODEL) == []
    ((key, message, fix),) = settings.problems(replace(MODEL, d_model=63))
    assert (key, fix) == ("model.d_model", "model.d_model=64")
    assert "even" in message
