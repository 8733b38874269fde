"""Linear attention with RoPE: the formula, numbers from outside, and the state that stands in for a T x T matrix."""

from dataclasses import replace

import pytest
import torch

from coca_train.attention.kernels import KERNELS
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import part_of
from coca_train.config.messages import ConfigError
from coca_train.config.schema import LayersConfig, LayerTypeConfig, LogitScaleConfig
from coca_train.evaluation.variants import Choice, variants
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.definition import gradients
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.models.conftest import LLAMA, build
from tests.positions import support


def linear_rope(rope_scaling=support.PLAIN, rotary_pct=1.0):
    return {"scheme": "linear_rope", "rotary_pct": rotary_pct, "rope_scaling": rope_scaling}


def phi(x):
    """elu(x) + 1."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class TestContract(SchemeContract):
    scheme = "linear_rope"
    angles = True
    cases = [linear_rope(), linear_rope(rotary_pct=0.5), linear_rope(support.scaling("dynamic_yarn"))]

    def weight(self, problem):
        """Pair of features by pair of features; no temperature, whatever the frequencies have."""
        q, k, width = phi(problem.q_BHTD), phi(problem.k_BHSK), problem.q_BHTD.shape[-1]
        rotated = round(width * problem.settings["rotary_pct"])
        theta, _ = problem.spectrum(rotated)
        apart = (problem.m_BTS - problem.n_BTS).double()[:, None]
        total = q[..., rotated:] @ k[..., rotated:].mT
        for j, frequency in enumerate(theta):
            a, b = q[..., :, None, j], q[..., :, None, j + rotated // 2]
            c, d = k[..., None, :, j], k[..., None, :, j + rotated // 2]
            total = total + (a * c + b * d) * (apart * frequency).cos() + (a * d - b * c) * (apart * frequency).sin()
        divisor = (q @ k.mT).masked_fill(~problem.seen_BTS[:, None], 0.0).sum(-1, keepdim=True)
        return total / divisor


def attend(kernel, scheme, inputs, pos, doc=None, rows=slice(None)):
    """Attention of some of the queries over all keys."""
    q, k, v = inputs
    mapped = parts.mapped(scheme, q[:, rows], k, pos[:, rows], pos, pos.shape[1])
    (layout,) = AttentionPattern(None).layouts(pos[:, rows], pos, doc)
    return KERNELS[kernel]([part_of(mapped, layout)], v, 1.0)


@pytest.mark.parametrize("kernel", ["eager", "auto"])
def test_numbers_from_outside(kernel):
    inputs, expected = case("linear_rope")
    # The golden pairs are j and j + D / 2, as ours.
    q, k, v = (tensor(inputs[name])[None, :, None] for name in ("q_TD", "k_TD", "v_TE"))
    scheme = parts.build(linear_rope({"name": "plain", "theta": float(inputs["base"])}), 1, 1, q.shape[-1])
    out = attend(kernel, scheme, (q, k, v), parts.start(q.shape[1]))
    assert same(out[0, :, 0], expected["causal_TE"], 1e-6)  # angles are float32


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(150, None), slice(299, None)])
def test_chunks_are_the_definition(heads, packed, rows):
    """Chunks of the size that is used, where a cache holds the keys before too; gradients of everything, float64."""
    scheme, n = parts.build(linear_rope(), *heads), 300
    pos, doc = parts.packed([130, 170], [256, 44]) if packed else (parts.start(n), None)
    inputs = parts.random_qkv(scheme, n)
    exact, fast = (attend(kernel, scheme, inputs, pos, doc, rows) for kernel in ("eager", "linear"))
    torch.testing.assert_close(fast, exact, rtol=0, atol=1e-12)
    weight = torch.randn(exact.shape, dtype=exact.dtype, generator=torch.Generator().manual_seed(1))
    for ours, right in zip(gradients(fast, inputs, weight), gradients(exact, inputs, weight), strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-11)


def test_documents_are_strangers_bit_for_bit():
    """Outputs and gradients of a document do not change with the one before it, in float32."""
    scheme, n = parts.build(linear_rope()), 300
    pos, doc = parts.packed([130, 170], [130, 170])

    def second(seed):
        pairs = zip(*(parts.random_qkv(scheme, n, dtype=torch.float32, seed=each) for each in (seed, 9)), strict=True)
        inputs = [torch.cat((a[:, :130], b[:, 130:]), 1).detach().requires_grad_() for a, b in pairs]
        out = attend("linear", scheme, inputs, pos, doc)[:, 130:]
        return [out, *(grad[:, 130:] for grad in torch.autograd.grad(out.square().sum(), inputs))]

    assert all(torch.equal(a, b) for a, b in zip(second(1), second(2), strict=True))


def test_weights_may_be_negative_and_the_divisor_may_not():
    scheme = parts.build(linear_rope(), 1, 1)
    q, k, _ = parts.random_qkv(scheme, 40)
    unit = torch.eye(40).double()[None, :, None].expand(2, -1, -1, -1)
    weights = attend("linear", scheme, (q, k, unit), parts.start(40))
    assert (weights < 0).any() and torch.isfinite(weights).all()
    far_below = [x.detach() - 60 for x in (q, k)]  # features of 1e-26 divide each other
    assert torch.isfinite(attend("linear", scheme, (*far_below, unit), parts.start(40))).all()


def test_memory_is_linear():
    """What autograd saves grows as the text does."""
    scheme, saved = parts.build(linear_rope()), []
    for n in (512, 1024, 2048):
        sizes = []
        inputs = parts.random_qkv(scheme, n, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, into=sizes: into.append(x.numel()) or x, lambda x: x):
            attend("linear", scheme, inputs, parts.start(n))
        saved.append(sum(sizes))
    assert saved[1] / saved[0] < 2.01 and saved[2] / saved[1] < 2.01


HYBRID = LayersConfig(pattern=["default", "nope"], types={"nope": LayerTypeConfig(position={"scheme": "nope"})})


@torch.no_grad()
def test_a_hybrid_has_linear_layers_and_scales_the_scores_of_the_others():
    """A cache is the whole computation; a logit scale cancels in linear layers, so it is the softmax layers' alone."""
    tokens = torch.randint(0, 101, (1, 20), generator=torch.Generator().manual_seed(5))
    model = build(LLAMA, linear_rope(), layers=HYBRID).double().eval()
    whole, cache = model.hidden(tokens), model.new_cache(20)
    pieces = [model.hidden(tokens[:, a:b], cache=cache) for a, b in ((0, 7), (7, 12), (12, 13), (13, 20))]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-5, atol=1e-6)
    grown = LogitScaleConfig(name="shifted_log", length=5, beta=0.1)
    model.set_logit_scale(grown)
    everywhere = model.hidden(tokens)
    assert not torch.allclose(everywhere, whole, atol=1e-3)
    scaled = {"nope": replace(HYBRID.types["nope"], logit_scale={"name": "shifted_log", "length": 5})}
    only_nope = build(LLAMA, linear_rope(), layers=replace(HYBRID, types=scaled)).double().eval()
    assert torch.equal(only_nope.hidden(tokens), everywhere)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention_pattern=sliding_window"], "E-CFG-44 .*sliding_window hides or moves tokens, and the state"),
        (["attention_pattern=sinks"], "E-CFG-44 .*a scheme with a softmax is needed. Fix: write attention_pattern="),
        (["attention_pattern=s2"], "E-CFG-44 .*s2 hides or moves tokens"),
        (["model.score_cap=50"], "E-CFG-20 .*linear_rope has none. Fix: write model.score_cap=null"),
        (["model.score_scale=head"], "E-CFG-20 .*Fix: write model.score_scale=none"),
        (["model.learned_sink=true"], "E-CFG-20 .*Fix: write model.learned_sink=false"),
        (["model.logit_scale.name=log"], "E-CFG-92 .*log scales the scores of a softmax, and linear_rope has none"),
        (
            ["position=rope", "layers={pattern: [default, a], types: {a: {logit_scale: {name: log}, position: "
             "{scheme: linear_rope, rotary_pct: 1.0, rope_scaling: {name: plain, theta: 10000}}}}}"],
            "E-CFG-92 .*layers.types.a.logit_scale.name.* Fix: write layers.types.a.logit_scale.name=none",
        ),
        (["position.rotary_pct=0.3"], "E-CFG-20 .*rotated features"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_without_a_softmax_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        load(["+experiment=llama_tiny", "position=linear_rope", *words], launch=False)


def test_a_hybrid_takes_a_logit_scale_and_no_window():
    words = ["+experiment=llama_tiny", "position=linear_rope", "layers=nope_every_fourth"]
    load([*words, "model.logit_scale.name=shifted_log", "model.logit_scale.length=500"], launch=False)
    config = load(words, launch=False).config
    found = [
        variants(config, [Choice(**{key: value})])
        for key, value in (("logit_scale", "log"), ("attention_pattern", "sliding_window"), ("rope_scaling", "linear"))
    ]
    assert [bool(each.problem) for label in found for each in label.values()] == [False, True, False]
    alone = load(words[:2], launch=False).config
    (refused,) = variants(alone, [Choice(logit_scale="log")]).values()
    assert refused.problem == "log scales the scores of a softmax, and linear_rope has none"
