"""Options of the model that other families have: losses, gradients, every kernel, caches, and hooks under a cap. Their
logits are held against transformers by tests/hub/test_families.py."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from coca_train.testing.parts import MODEL
from tests.models.conftest import build

OPTIONS: dict[str, dict[str, Any]] = {
    "caps": {"score_cap": 2.0, "logits_cap": 3.0},
    "gemma": {
        "norm_placement": "both", "norm_weight": "one_plus", "qk_norm": "head", "activation": "geglu_tanh",
        "embedding_multiplier": 8.0, "attention_multiplier": 0.2,
    },
    "olmo2": {"norm_placement": "post", "qk_norm": "full"},
    "one norm": {
        "residual": "parallel_one_norm", "norm": "layernorm", "bias": ["qkv", "head"], "logits_multiplier": 0.25,
        "activation": "relu2", "residual_multiplier": 0.3, "embedding_norm": True,
    },
    "no weights": {"norm": "layernorm", "norm_weight": "none", "activation": "relu"},
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["rope", "coca", "fire"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_losses_and_gradients_are_those_of_the_logits(options, scheme, tokens_BT):
    model, tokens = build(replace(MODEL, **options), scheme), tokens_BT()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss = model(inputs, targets)
    loss.backward()
    of_loss = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.losses(inputs, targets).sum(), expected.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(of_loss[name], parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["blocked", "sdpa", "flex"])
@pytest.mark.parametrize("scheme", ["rope", "coca", "alibi", "fire", "fox"])
def test_a_cap_is_the_same_in_every_kernel(scheme, kernel, tokens_BT):
    tokens, config = tokens_BT(), replace(MODEL, score_cap=0.5)
    model = build(config, scheme)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    with torch.no_grad():
        model.attention = "eager"
        defined = model(tokens)
        model.attention = kernel
        torch.testing.assert_close(model(tokens), defined, rtol=1e-4, atol=1e-4)
        uncapped = build(MODEL, scheme)
        uncapped.load_state_dict(model.state_dict())
        assert not torch.allclose(uncapped(tokens), defined, atol=1e-2)


def test_a_folded_penalty_is_not_multiplied(tokens_BT):
    config, tokens = replace(MODEL, attention_multiplier=0.7), tokens_BT()
    with torch.no_grad():
        plain, folded = (build(config, f"alibi_{fold}")(tokens) for fold in ("plain", "folded"))
    torch.testing.assert_close(folded, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_cached_steps_are_the_whole(options, tokens_BT):
    model, tokens = build(replace(MODEL, **options), "rope").eval(), tokens_BT(1, 12)
    with torch.no_grad():
        cache, steps = model.new_cache(12), []
        for token in tokens.split(1, 1):
            steps.append(model(token, cache=cache))
        torch.testing.assert_close(torch.cat(steps, 1), model(tokens), rtol=1e-4, atol=1e-4)


def test_one_plus_begins_as_a_plain_norm(tokens_BT):
    """1 + 0 is 1."""
    begun = [build(replace(MODEL, norm_weight=weight, qk_norm="head"), "rope") for weight in ("plain", "one_plus")]
    assert torch.equal(*(model(tokens_BT()) for model in begun))
