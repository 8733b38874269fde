"""`hidden(last=n)` is the end of the whole result: every scheme, every visibility, every attention kernel."""

import pytest
import torch

from coca_train.models.cache import KVCache
from coca_train.positions import visibilities
from tests.models.conftest import LLAMA, NEOX, SCHEMES, build, settings

VISIBILITIES = [
    {"name": "causal"},
    {"name": "sliding_window", "window": 9},
    {"name": "sinks", "n_sink": 2, "window": 7},
    {"name": "lambda_mask", "n_global": 2, "window": 7, "max_distance": 11},
    {"name": "rerope", "window": 9},
    {"name": "segments", "length": 13},
]


def pairs():
    for scheme in SCHEMES:
        for rules in VISIBILITIES:
            position, visibility = settings(scheme, rules)
            if not visibilities.problems(visibility, position, LLAMA):
                yield pytest.param(scheme, rules, id=f"{scheme}-{rules['name']}")


@pytest.fixture
def wide(tokens_BT):
    """(model in float64, tokens)"""

    def made(config, scheme, rules=VISIBILITIES[0], **options):
        model = build(config, scheme, rules, **options).double().eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
        return model, tokens_BT(2, 33)

    return made


@torch.no_grad()
@pytest.mark.parametrize(("scheme", "rules"), list(pairs()))
def test_every_scheme_and_visibility(wide, scheme, rules):
    model, tokens = wide(LLAMA, scheme, rules)
    whole = model.hidden(tokens)
    for last in (1, 5):
        torch.testing.assert_close(model.hidden(tokens, last=last), whole[:, -last:], atol=1e-11, rtol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa", "blocked", "auto"])
def test_every_kernel_and_parallel_residuals(wide, attention):
    model, tokens = wide(NEOX, "rope", attention=attention)
    torch.testing.assert_close(model.hidden(tokens, last=6), model.hidden(tokens)[:, -6:], atol=1e-11, rtol=1e-11)


@torch.no_grad()
def test_documents_stay_apart(wide):
    model, tokens = wide(NEOX, "coca")
    doc = (torch.arange(33) >= 30).long()[None].expand(2, -1)
    pos = torch.cat((torch.arange(30), torch.arange(3)))[None].expand(2, -1)
    whole = model.hidden(tokens, pos_BT=pos, doc_BT=doc)
    torch.testing.assert_close(model.hidden(tokens, pos_BT=pos, doc_BT=doc, last=7), whole[:, -7:])


@torch.no_grad()
def test_all_positions_and_more_are_the_whole(wide):
    model, tokens = wide(LLAMA, "rope")
    whole = model.hidden(tokens)
    assert torch.equal(model.hidden(tokens, last=33), whole)
    assert torch.equal(model.hidden(tokens, last=99), whole)


@torch.no_grad()
def test_a_cache_holds_the_positions_that_were_not_wanted(wide):
    model, tokens = wide(LLAMA, "rope")
    cache = KVCache(2, 33)
    model.hidden(tokens[:, :20], cache=cache, last=1)
    after = model.hidden(tokens[:, 20:], cache=cache, last=4)
    torch.testing.assert_close(after, model.hidden(tokens)[:, -4:], atol=1e-11, rtol=1e-11)


@torch.no_grad()
def test_the_last_layer_computes_no_more_than_is_wanted(wide):
    model, tokens = wide(LLAMA, "rope")
    shapes = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, given, made: shapes.append(made.shape[1]))
    model.hidden(tokens, last=5)
    assert shapes == [33, 5]
