"""The penalty on the angle between queries and keys: its value in plain loops, its gradients, and that the loss that is
logged has none of it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.hub.architecture import Architecture
from coca_train.models.transformer import Transformer
from coca_train.positions.base import LayerPosition
from coca_train.positions.schemes.rope import misalignment
from coca_train.runtime import IGNORE
from coca_train.settings import load
from coca_train.testing.parts import MODEL
from tests.models.conftest import build
from tests.positions import support

WEIGHT = 0.3


def penalised(n_kv_heads: int | None = None, rotary_pct: float = 1.0, weight: float = WEIGHT, **options):
    settings = support.rope(rotary_pct=rotary_pct) | {"angle_penalty": weight}
    model = build(replace(MODEL, n_kv_heads=n_kv_heads), settings, **options)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def positions_of(model: Transformer) -> list[LayerPosition]:
    return [each for each in model.modules() if isinstance(each, LayerPosition)]


def in_loops(q_BTHR: Tensor, k_BSGR: Tensor) -> float:
    """Return the definition of the penalty, pair by pair."""
    found, half = [], q_BTHR.shape[-1] // 2
    per_group = q_BTHR.shape[2] // k_BSGR.shape[2]
    for b in range(len(q_BTHR)):
        for h in range(q_BTHR.shape[2]):
            cosines = lengths = 0.0
            for q_R in q_BTHR[b, :, h].tolist():
                for k_R in k_BSGR[b, :, h // per_group].tolist():
                    for j in range(half):
                        q, k = (q_R[j], q_R[j + half]), (k_R[j], k_R[j + half])
                        length = math.hypot(*q) * math.hypot(*k)
                        angle = math.atan2(q[1], q[0]) - math.atan2(k[1], k[0])
                        cosines, lengths = cosines + length * math.cos(angle), lengths + length
            found.append(1 - cosines / lengths)
    return sum(found) / len(found)


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_it_is_one_minus_the_mean_cosine_of_all_pairs(n_kv_heads: int) -> None:
    q, k = torch.randn(2, 5, 4, 8, dtype=torch.float64), torch.randn(2, 7, n_kv_heads, 8, dtype=torch.float64)
    assert float(misalignment(q, k)) == pytest.approx(in_loops(q, k), abs=1e-12)


def test_it_is_zero_for_collinear_and_two_for_opposite_pairs_whatever_their_lengths() -> None:
    direction_2J = F.normalize(torch.randn(2, 4), dim=0)
    q, k = ((torch.rand(1, 6, 2, 1, 4) * direction_2J).flatten(-2) for _ in range(2))
    assert float(misalignment(q, k)) == pytest.approx(0, abs=1e-6)
    assert float(misalignment(q, -k)) == pytest.approx(2, abs=1e-6)
    assert float(misalignment(q * 100, k / 7)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("key", [0.0, 3.0])
def test_a_head_of_zeros_has_no_penalty_and_no_gradient(key: float) -> None:
    q = torch.zeros(1, 30, 2, 8, requires_grad=True)
    value = misalignment(q, torch.full((1, 30, 2, 8), key))
    value.backward()
    assert value == 0 and q.grad is not None and not q.grad.any()


@pytest.mark.parametrize("rotary_pct", [1.0, 0.5])
@pytest.mark.parametrize("n_kv_heads", [None, 2])
def test_the_loss_is_that_without_it_and_the_gradients_are_of_the_sum(n_kv_heads, rotary_pct, tokens_BT) -> None:
    tokens = tokens_BT()
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[0, :3] = IGNORE
    model, plain = (penalised(n_kv_heads, rotary_pct, weight) for weight in (WEIGHT, 0.0))
    loss = model(inputs, targets)
    loss.backward()
    seen: list[tuple[Tensor, Tensor]] = []
    for each in positions_of(plain):
        each.register_forward_pre_hook(lambda _, args: seen.append((args[1], args[2])))
    expected = plain(inputs, targets)
    assert torch.equal(loss, expected)
    width = int(rotary_pct * seen[0][0].shape[-1])
    penalty = torch.stack([misalignment(q[..., :width], k[..., :width]) for q, k in seen]).mean()
    (expected + WEIGHT * (targets != IGNORE).sum() * penalty).backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_have_the_same_gradients(recompute: str, tokens_BT) -> None:
    gradients = []
    for how in ("none", recompute):
        model = penalised(activation_checkpointing=how)
        model(tokens_BT()[:, :-1], tokens_BT()[:, 1:]).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        assert all(each.penalty is None for each in positions_of(model))  # a graph that is computed again is let go
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_it_is_gone_where_nothing_is_trained(tokens_BT) -> None:
    model, inputs = penalised(), tokens_BT()[:, :-1]
    model.eval()
    model(inputs, inputs).backward()
    assert all(each.penalty is None for each in positions_of(model))
    model.train()
    with torch.no_grad():
        model(inputs, inputs)
    assert all(each.penalty is None for each in positions_of(model))


def test_it_draws_queries_and_keys_together(tokens_BT) -> None:
    """Some steps of gradient descent, with it and without."""

    def after_steps(weight: float) -> float:
        model, inputs = penalised(weight=weight), tokens_BT()[:, :-1]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            (model(inputs, tokens_BT()[:, 1:]) / inputs.numel()).backward()
            optimizer.step()
        seen: list[Tensor] = []
        for each in positions_of(model):
            each.register_forward_pre_hook(lambda _, args: seen.append(misalignment(args[1], args[2])))
        with torch.no_grad():
            model(inputs)
        return float(torch.stack(seen).mean())

    assert after_steps(1.0) < after_steps(0.0) - 0.2


def test_what_is_exported_has_none() -> None:
    position = Architecture.of(load(["position=rope", "position.angle_penalty=0.3"]).config, 64).position
    assert getattr(position, "angle_penalty", None) == 0
