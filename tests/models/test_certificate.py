"""The effect certificate under attention patterns, and where positions end."""

import pytest
import torch

from coca_train.attention import patterns
from coca_train.models.certificate import certify
from tests.fixes import first, fix_of
from tests.models.conftest import NEOX, SCHEMES, build

WINDOWS = [
    {"name": "sliding_window", "window": 5},
    {"name": "sinks", "n_sink": 2, "window": 5},
    {"name": "lambda_mask", "n_global": 3, "window": 7, "max_distance": 5},
    {"name": "rerope", "window": 5},
]
windows = pytest.mark.parametrize("attention_pattern", WINDOWS, ids=lambda v: v["name"])


def seeing(scheme, attention_pattern):
    model = build(NEOX, scheme)
    model.set_attention_pattern(patterns.settings(attention_pattern))
    return model


@windows
@pytest.mark.parametrize("scheme", ["rope", "coca_strict", "alibi", "t5"])
def test_granted_under_every_attention_pattern_with_a_short_window(scheme, attention_pattern):
    model = seeing(scheme, attention_pattern)
    certify(model, torch.device("cpu"), torch.float32)
    assert model.attention_pattern.settings.name == attention_pattern["name"]


@windows
def test_a_window_is_no_effect_of_the_scheme(monkeypatch, attention_pattern):
    model = seeing("rope", attention_pattern)
    monkeypatch.setattr(model.position, "rotate", lambda q, k, tables: (q, k))
    with pytest.raises(ValueError, match="E-POS-02"):
        certify(model, torch.device("cpu"), torch.float32)


def test_a_kernel_that_forgets_the_attention_pattern(monkeypatch):
    from coca_train.attention import kernels
    from coca_train.attention.pattern import Rule
    from coca_train.models import certificate

    def forgetful(parts, v, scale):
        return kernels.eager([part._replace(layout=part.layout._replace(rule=Rule())) for part in parts], v, scale)

    monkeypatch.setattr(certificate, "KERNELS", dict(kernels.KERNELS, auto=forgetful))
    model = seeing("rope", WINDOWS[0])
    with pytest.raises(ValueError, match="E-POS-01") as raised:
        certify(model, torch.device("cpu"), torch.float32)
    (word,) = first(fix_of(raised.value))
    model.attention = word.removeprefix("engine.attention=")
    certify(model, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("scheme", ["fox", "cope", "dape", "fire"])
def test_hooks_are_granted_and_missed(monkeypatch, scheme):
    """A kernel that leaves a hook out computes something else; a layer that has lost it has no effect."""
    from coca_train.attention import kernels
    from coca_train.models import certificate

    model = build(NEOX, scheme)
    own = certify(model, torch.device("cpu"), torch.float32)["default"]
    assert own.effect > 1e-2 and own.logits_effect > 1e-3

    def forgetful(parts, v, scale):
        return kernels.eager([part._replace(score_mod=None) for part in parts], v, scale)

    with monkeypatch.context() as patch:
        patch.setattr(certificate, "KERNELS", dict(kernels.KERNELS, auto=forgetful))
        with pytest.raises(ValueError, match="E-POS-01"):
            certify(model, torch.device("cpu"), torch.float32)
    for block in model.blocks:
        block.attention.position.register_forward_hook(lambda _, given, mapped: mapped._replace(score_mod=None))
    with pytest.raises(ValueError, match="E-POS-02"):
        certify(model, torch.device("cpu"), torch.float32)
    for block in model.blocks:
        assert len(block.attention.position._forward_hooks) == 1, "the certificate takes its own hooks away"


@pytest.mark.parametrize("scheme", ["learned", "tupe"])
def test_granted_to_a_short_table(scheme):
    certify(build(NEOX, SCHEMES[scheme] | {"max_len": 16}), torch.device("cpu"), torch.float32)
