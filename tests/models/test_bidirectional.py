"""Models that read in both directions: which schemes go with it, what a token sees, and what is refused."""

from dataclasses import replace

import pytest
import torch

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.flex import _classify_blocks, flex
from coca_train.attention.kernels import KERNELS
from coca_train.attention.pattern import seen
from coca_train.attention.scores import part_of
from coca_train.models.certificate import certify
from coca_train.positions import SCHEMES
from coca_train.testing import parts
from tests.golden.methods import case, same, tensor
from tests.models.conftest import LLAMA, NEOX, PLAIN, build

BOTH = {"name": "bidirectional"}
SHIPPED = dict(parts.shipped())
SEES_BOTH = {"alibi", "coca", "disentangled", "fope", "kerple_log", "kerple_power", "learned", "nope", "pope", "rope"}
SEES_BOTH |= {"sandwich", "shaw", "sinusoidal", "t5", "transformer_xl", "tupe"}
EVEN = {"alibi", "coca_strict", "kerple_log", "kerple_power", "nope", "sandwich"}  # scores of m - n and n - m are equal


def goes(name):
    settings = dict(SHIPPED[name])
    return settings | ({"memory_len": 0} if settings["scheme"] == "transformer_xl" else {})


CHOICES = [name for name in SHIPPED if SHIPPED[name]["scheme"] in SEES_BOTH]


def test_the_schemes_that_go_with_it():
    """The others take the order of a text for granted: sums along it, a growth with it, a share of it."""
    found = {name for name in SCHEMES.names() if not parts.refused(BOTH, parts.build(goes(first_of(name))))}
    assert found == SEES_BOTH


def first_of(scheme):
    return next(name for name, settings in SHIPPED.items() if settings["scheme"] == scheme)


@pytest.mark.parametrize("name", CHOICES)
def test_which_schemes_tell_left_from_right(name):
    """Queries and keys that are all alike: what is left is where they stand. docs/positions.md says which are even."""
    scheme = parts.build(goes(name), bidirectional=True)
    layer, shape = parts.layer_of(scheme), scheme.shape
    q, k = torch.ones(1, 9, shape.n_heads, shape.head_dim), torch.ones(1, 9, shape.n_kv_heads, scheme.key_dim)
    q, k = q.double(), k.double()
    if name == "coca":
        q[..., : shape.head_dim // 2] = 0.5  # with equal halves slack is strict
    scores = parts.dense_scores(scheme, q, k, parts.start(9), parts.start(9), 9, layer)
    even = torch.allclose(scores, scores.mT, rtol=1e-6, atol=1e-9)
    if name not in ("rope", "fope", "learned", "sinusoidal"):  # content decides; the last two act on embeddings
        assert even == (name in EVEN)


@pytest.mark.parametrize(("variant", "expected"), [("strict", "strict_TT"), ("slack", "slack_TT")])
def test_coca_equals_numbers_from_outside(variant, expected):
    inputs, wanted = case("coca_bidirectional")
    q, t = tensor(inputs["q_TD"])[None, :, None], tensor(inputs["t_TJ_before_relu"])[None, :, None]
    scaling = {"name": "plain", "theta": float(inputs["base"])}
    settings = goes("coca") | {"variant": variant, "t_width": "half", "rotary_pct": 1.0, "rope_scaling": scaling}
    scheme = parts.build(settings, 1, 1, q.shape[-1], bidirectional=True)
    pos = parts.start(q.shape[1])
    scores = parts.dense_scores(scheme, q, t, pos, pos, q.shape[1])
    assert same(scores[0, 0], wanted[expected], 1e-6)  # angles are float32


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_flex_attention_equals_the_definition(name, window):
    """Forward, uncompiled, as far as torch has it on a CPU; several documents."""
    scheme = parts.build(goes(name), 2, 2, 16, bidirectional=True).float()
    own, (pos, doc) = parts.layer_of(scheme).float(), parts.packed([9, 60, 60, 30], [60, 59, 40])
    q, k, v = (x.detach() for x in parts.random_qkv(scheme, 159, dtype=torch.float32))
    rules = patterns.build(patterns.settings(BOTH | {"window": window}))
    (layout,) = rules.layouts(pos, pos, doc)
    tables, project = scheme(layout.pos_BT, layout.pos_BS, 159), parts.projections(scheme, torch.float32)
    part = part_of(own(scheme, q, k, tables, project, parts.tokens(own, k)), layout)
    if part.terms.value_RD is not None:
        return  # Shaw's values are for `blocked`
    exact = KERNELS["eager"]([part], v, 0.25)
    torch.testing.assert_close(flex([part], v, 0.25), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5, 130])
def test_blocks_that_hold_nothing_are_not_computed(window):
    """By blocks of 128 tokens, and those that hold all their pairs need no mask."""
    rules = patterns.build(patterns.settings(BOTH | {"window": window}))
    (layout,) = rules.layouts(parts.start(640), parts.start(640))
    blocks = seen(layout, slice(0, 640), slice(0, 640))[0].unflatten(0, (5, 128)).unflatten(-1, (5, 128))
    visible, whole = _classify_blocks(layout)
    assert torch.equal(visible[0], blocks.any(-1).any(1)) and torch.equal((visible & whole)[0], blocks.all(-1).all(1))


@pytest.mark.parametrize("name", CHOICES)
def test_a_model_sees_both_sides_and_its_documents_are_strangers(name):
    model = build(replace(NEOX, dropout=0.0), goes(name), BOTH).eval()
    tokens, doc = torch.arange(20)[None] % 101, torch.tensor([[0] * 8 + [1] * 12])
    other = tokens.clone()
    other[0, 19] = 55
    before, after = (model(each) for each in (tokens, other))
    assert ((before - after)[0, :19].abs().amax(-1) > 0).all()
    pos = torch.cat((torch.arange(8), torch.arange(12)))[None]
    before, after = (model(each, pos_BT=pos, doc_BT=doc) for each in (tokens, other))
    assert torch.equal(before[0, :8], after[0, :8]) and not torch.equal(before[0, 8:], after[0, 8:])
    assert torch.equal(model(tokens, wanted=[(3, 5)]), model(tokens)[:, 3:5])


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_certifies_it(name):
    model = build(LLAMA, goes(name), BOTH, attention="blocked")
    (certificate,) = certify(model, torch.device("cpu"), torch.float32).values()
    assert certificate.fused_error < 1e-5


def test_a_window_is_of_both_sides():
    model = build(replace(NEOX, n_layers=1), {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": PLAIN}, BOTH)
    model.set_attention_pattern(patterns.settings(BOTH | {"window": 3}))
    tokens = torch.arange(20)[None] % 101
    other = tokens.clone()
    other[0, 10] = 55
    changed = (model.eval()(tokens) - model(other))[0].abs().amax(-1) > 0
    assert changed.nonzero()[:, 0].tolist() == [8, 9, 10, 11, 12]


def test_buckets_are_halved():
    settings = positions.settings({"scheme": "t5", "n_buckets": 7, "max_distance": 20})
    (problem,) = patterns.problems(patterns.settings(BOTH), settings, NEOX)
    assert problem[0] == "position.n_buckets" and problem[2] == "write position.n_buckets=8"
    folded = positions.settings(SHIPPED["alibi"] | {"fold": "always"})
    assert patterns.problems(patterns.settings(BOTH), folded, NEOX)[0][2] == "write position.fold=auto"
