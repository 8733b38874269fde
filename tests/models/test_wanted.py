"""`hidden(wanted=)` is a part of the whole result: every scheme, every attention pattern, every attention kernel."""

import itertools

import pytest
import torch

from coca_train.attention import patterns
from tests.models.conftest import LLAMA, NEOX, SCHEMES, build, settings

ATTENTION_PATTERNS = [
    {"name": "causal"},
    {"name": "sliding_window", "window": 9},
    {"name": "sinks", "n_sink": 2, "window": 7},
    {"name": "lambda_mask", "n_global": 2, "window": 7, "max_distance": 11},
    {"name": "rerope", "window": 9},
    {"name": "segments", "length": 13},
]


def pairs():
    """All that go together; every fifth is quick: each scheme, and each time another attention pattern."""
    every = itertools.product(SCHEMES, ATTENTION_PATTERNS)
    fitting = [pair for pair in every if not patterns.problems(*settings(*pair)[::-1], LLAMA)]
    for n, (scheme, rules) in enumerate(fitting):
        marks = pytest.mark.slow if n % 5 else ()
        yield pytest.param(scheme, rules, id=f"{scheme}-{rules['name']}", marks=marks)


@pytest.fixture
def wide(tokens_BT):
    """(model in float64, tokens)"""

    def build_wide(config, scheme, rules=ATTENTION_PATTERNS[0], **options):
        model = build(config, scheme, rules, **options).double().eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
        return model, tokens_BT(2, 33)

    return build_wide


STRETCHES = [[(32, 33)], [(28, 33)], [(0, 9), (14, 16), (27, 33)], [(0, 4)], [(0, 33)]]


def taken(whole, wanted):
    return torch.cat([whole[:, begin:end] for begin, end in wanted], dim=1)


@torch.no_grad()
@pytest.mark.parametrize(("scheme", "rules"), list(pairs()))
def test_every_scheme_and_attention_pattern(wide, scheme, rules):
    model, tokens = wide(LLAMA, scheme, rules)
    whole, tolerance = model.hidden(tokens), 1e-6 if scheme == "xpos" else 1e-11  # its float32 powers move with the end
    for wanted in STRETCHES[1:3]:
        rows = model.hidden(tokens, wanted=wanted)
        torch.testing.assert_close(rows, taken(whole, wanted), atol=tolerance, rtol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa", "blocked", "auto"])
def test_every_kernel_and_parallel_residuals(wide, attention):
    model, tokens = wide(NEOX, "rope", attention=attention)
    whole = model.hidden(tokens)
    for wanted in STRETCHES:
        rows = model.hidden(tokens, wanted=wanted)
        torch.testing.assert_close(rows, taken(whole, wanted), atol=1e-11, rtol=1e-11)


@torch.no_grad()
def test_documents_stay_apart(wide):
    model, tokens = wide(NEOX, "coca")
    doc = (torch.arange(33) >= 20).long()[None].expand(2, -1)
    pos = torch.cat((torch.arange(20), torch.arange(13)))[None].expand(2, -1)
    whole, wanted = model.hidden(tokens, pos_BT=pos, doc_BT=doc), [(10, 22), (26, 33)]
    torch.testing.assert_close(model.hidden(tokens, pos_BT=pos, doc_BT=doc, wanted=wanted), taken(whole, wanted))


@torch.no_grad()
def test_lengths_reach_the_last_layer(wide):
    """Dynamic frequencies see the length that was said, not that of a stretch."""
    dynamic = {"name": "dynamic_ntk", "theta": 10000.0, "alpha": 1.0, "original_seq_len": 8}
    model, tokens = wide(LLAMA, {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": dynamic})
    whole = model.hidden(tokens, length=48)
    rows = model.hidden(tokens, length=48, wanted=STRETCHES[2])
    torch.testing.assert_close(rows, taken(whole, STRETCHES[2]), atol=1e-11, rtol=1e-11)
    assert not torch.allclose(rows, taken(model.hidden(tokens), STRETCHES[2]))


@torch.no_grad()
def test_the_last_layer_computes_no_more_than_is_wanted(wide):
    model, tokens = wide(LLAMA, "rope")
    shapes = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, given, output: shapes.append(output.shape[1]))
    model.hidden(tokens, wanted=[(3, 5), (28, 33)])
    assert shapes == [33, 2, 5]
