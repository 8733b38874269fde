"""Scores that grow with the length, and normalised queries and keys: numbers that did not come through our code."""

import math
from dataclasses import replace

import pytest
import torch
from mpmath import log, mp, mpf

from coca_train.attention import patterns
from coca_train.attention.kernels import KERNELS
from coca_train.config.schema import LogitScaleConfig
from coca_train.models.certificate import certify
from coca_train.models.score_options import logit_scale
from coca_train.models.transformer import build_model
from coca_train.positions.base import Hook, ScoreMod
from coca_train.runtime.errors import UserError
from coca_train.settings import load
from tests.cases import slow_unless
from tests.golden.methods import case, same, tensor
from tests.models.conftest import LLAMA, SCHEMES, build

POSITIONS = [0, 1, 99, 127, 128, 4095, 8190, 8191, 8192, 16383, 131071, 1048575]


def scale(name, length=None, beta=0.1):
    return LogitScaleConfig(name=name, length=length, beta=beta)


def test_log_by_forty_digits():
    """Su (kexue.fm/archives/8823): ln n / ln L with n keys, and never below one."""
    mp.dps = 40
    expected = [float(max(mpf(1), log(m + 1) / log(128))) for m in POSITIONS]
    scale_BT = logit_scale(scale("log"), torch.tensor([POSITIONS]), 128)
    torch.testing.assert_close(scale_BT, torch.tensor([expected]), rtol=3e-7, atol=0)
    assert scale_BT.dtype == torch.float32
    assert scale_BT[0, :4].tolist() == [1.0] * 4


def test_steps_by_transformers_llama_4():
    """The queries that its attention without RoPE hands to the kernel, all one before they are scaled."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    seen = {}

    def watched(module, query, key, value, mask, **_):
        seen["query"] = query
        return query.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("watched", watched)
    widths = {"hidden_size": 16, "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Llama4TextConfig(
        **widths, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], floor_scale=100, attn_scale=0.25
    )
    config._attn_implementation = "watched"
    attention = Llama4TextAttention(config, layer_idx=3)
    torch.nn.init.ones_(attention.q_proj.weight)
    attention(torch.ones(1, 450, 16) / 16, position_embeddings=None, attention_mask=None)
    scale_BT = logit_scale(scale("steps", 100, 0.25), torch.arange(450)[None], 32)
    torch.testing.assert_close(scale_BT[0], seen["query"][0, 0, :, 0], rtol=3e-7, atol=0)
    assert len(scale_BT.unique()) == 5


def test_hype_and_drope_by_numbers_from_outside():
    inputs, expected = case("log_scales")
    places = torch.tensor([inputs["t"]])
    assert same(logit_scale(scale("shifted_log", inputs["a"]), places, 64)[0], expected["hype"], 1e-6)
    for name, beta in (("drope_from_scratch", 0.412), ("drope_smollm", 0.103)):
        ours = [logit_scale(scale("by_length", 512, beta), places, 64, 512 * s)[0, -1] for s in inputs["s"]]
        assert same(torch.stack(ours), expected[name], 1e-6)


def test_ssmax_by_numbers_from_outside():
    """s_h ln n is s_h ln L times our factor; weights of two heads."""
    inputs, expected = case("ssmax")
    a_HTT, s_H = tensor(inputs["a_HTT"]), tensor(inputs["s_H"]) * math.log(32)
    factor_T = logit_scale(scale("ssmax"), torch.arange(a_HTT.shape[1])[None], 32)[0]
    unseen = torch.ones_like(a_HTT[0], dtype=torch.bool).triu(1)
    weight_HTT = (a_HTT * s_H[:, None, None] * factor_T[:, None]).masked_fill(unseen, -math.inf).softmax(-1)
    assert same(weight_HTT, expected["weight_HTT"], 1e-6)


def test_ssmax_counts_the_keys_of_a_window():
    factor = logit_scale(scale("ssmax", 16), torch.arange(9)[None], 32, most_seen=4)
    exact = torch.tensor([[1, 2, 3, 4, 4, 4, 4, 4, 4]]).float().log() / math.log(16)
    torch.testing.assert_close(factor, exact)


def multiply_scores(factor_H):
    """Everything that is added up, before what a scheme's own hook makes of it: a hook around it."""

    def around(_, inputs, mapped):
        own = mapped.score_mod or ScoreMod(Hook(lambda pairs, carry: (pairs.scores_BHts, carry)))

        def scores(pairs, carry):
            factor, *others = pairs.parameters
            scaled_BHts = pairs.scores_BHts * factor[:, None, None]
            return own.by.scores(pairs._replace(scores_BHts=scaled_BHts, parameters=tuple(others)), carry)

        by = Hook(scores, carried=own.by.carried)
        return mapped._replace(score_mod=own._replace(by=by, parameters=(factor_H * 1.0, *own.parameters)))

    return around


HEAD_SCALED = ["rope", "coca", "alibi_plain", "t5", "shaw", "transformer_xl", "fox"]


@pytest.mark.parametrize("kernel", ["eager", "blocked", "auto"])
@pytest.mark.parametrize("scheme", HEAD_SCALED)
def test_every_head_learns_a_factor_of_its_scores(tokens_BT, scheme, kernel):
    """In float64, forward and backward, against a hook that multiplies the scores of every pair."""
    options = replace(LLAMA, score_scale="head", logit_scale=scale("ssmax", 6))
    tokens, model = tokens_BT(2, 17), build(options, scheme, attention=kernel).double()
    plain = build(replace(options, score_scale="none"), scheme, attention="eager").double()
    ours, theirs = [block.attention.score_scale.weight for block in model.blocks], []
    for factor, block in zip(ours, plain.blocks, strict=True):
        assert (factor == 1).all()
        factor.data.uniform_(0.3, 2.0)
        theirs.append(factor.detach().clone().requires_grad_())
        block.attention.position.register_forward_hook(multiply_scores(theirs[-1]))
    outputs = [each.hidden(tokens) for each in (model, plain)]
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    others = dict(plain.named_parameters())
    grads = [(p.grad, others[name].grad) for name, p in model.named_parameters() if name in others]
    grads += [(factor.grad, other.grad) for factor, other in zip(ours, theirs, strict=True)]
    for grad, expected in grads:
        torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7)
    assert all(factor.grad.abs().min() > 0 for factor in ours)


@torch.no_grad()
def test_a_scale_by_length_follows_the_text_and_is_one_within_the_window(tokens_BT):
    """Every query of a text has the same; a shorter text has none, and decoding to a length has its."""
    tokens = tokens_BT(1, 20)
    model = build(replace(LLAMA, logit_scale=scale("by_length", 10, 0.4)), "rope").eval()
    plain = build(LLAMA, "rope").eval()
    torch.testing.assert_close(model.hidden(tokens[:, :10]), plain.hidden(tokens[:, :10]))
    assert (model.hidden(tokens) - plain.hidden(tokens)).abs().max() > 1e-3
    cache = model.new_cache(20, at_length=20)
    parts = [model.hidden(part, cache=cache, length=20) for part in tokens.split((7, 1, 12), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model.hidden(tokens), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_cache_that_holds_a_window_knows_the_length_of_the_text(tokens_BT):
    """A step without a length has the scale of the tokens so far, as the whole computation of them."""
    tokens, window = tokens_BT(1, 20), {"name": "sliding_window", "window": 6}
    options = replace(LLAMA, n_layers=1, logit_scale=scale("by_length", 8, 1.0))
    model = build(options, "rope", window).eval()
    cache = model.new_cache(20)
    steps = [model.hidden(tokens[:, n : n + 1], cache=cache) for n in range(20)]
    for n in (5, 9, 19):
        torch.testing.assert_close(steps[n][:, 0], model.hidden(tokens[:, : n + 1])[:, -1], rtol=1e-4, atol=1e-5)


LENGTH = 6  # from which on queries are scaled, in the tests below


def scaled_by_the_formula(module, given, q_BTC):
    """What ReRoPE's and CLEX's authors do to the queries: max(1, ln(m + 1) / ln L) in float64, m from 0 on."""
    log_n_T = torch.arange(1, q_BTC.shape[1] + 1, dtype=torch.float64).log() / math.log(LENGTH)
    return q_BTC * log_n_T.clamp(min=1.0)[:, None]


@pytest.mark.parametrize("seen", slow_unless(["causal"], ["causal", "rerope"]))
@torch.no_grad()
def test_every_path_is_the_scaled_queries_of_the_authors(tokens_BT, seen):
    """In float64, with nothing of ours in the reference but the model without the option: every kernel, and decoding
    with a cache, of a model that is built with it and of one that takes it later."""
    attention_pattern, tokens = SEEING[seen], tokens_BT(2, 19)
    built = {name: build(replace(LLAMA, logit_scale=scale("log", LENGTH)), "rope", attention_pattern, attention=name)
             for name in ("eager", "blocked", "flex", "auto")}  # fmt: skip
    plain = build(LLAMA, "rope", attention_pattern, attention="eager").double().eval()
    without = plain.hidden(tokens)
    hooks = [block.attention.q.register_forward_hook(scaled_by_the_formula) for block in plain.blocks]
    expected = plain.hidden(tokens)
    for hook in hooks:
        hook.remove()
    assert (expected - without)[:, :LENGTH].abs().max() == 0
    assert ((expected - without)[:, LENGTH:].abs().amax((0, 2)) > 1e-3).all()
    for model in built.values():
        torch.testing.assert_close(model.double().eval().hidden(tokens), expected, rtol=1e-6, atol=1e-6)
    cache = built["auto"].new_cache(19)
    parts = [built["auto"].hidden(part, cache=cache) for part in tokens.split((7, 1, 1, 10), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-6, atol=1e-6)
    with plain.restored():
        plain.set_logit_scale(scale("log", LENGTH))
        torch.testing.assert_close(plain.hidden(tokens), expected, rtol=1e-6, atol=1e-6)
        plain.set_logit_scale(None)
        torch.testing.assert_close(plain.hidden(tokens), without, rtol=0, atol=0)
        plain.set_logit_scale(scale("log", LENGTH))
    torch.testing.assert_close(plain.hidden(tokens), without, rtol=0, atol=0)


def test_a_kernel_that_ignores_the_scale_is_not_certified(monkeypatch):
    """At the lengths of training `log` is one: the certificate looks beyond."""
    definition = KERNELS["blocked"]
    monkeypatch.setitem(
        KERNELS, "blocked", lambda parts, *rest: definition([part._replace(scale_BT=None) for part in parts], *rest)
    )
    model = build(replace(LLAMA, logit_scale=scale("log", 1000)), "rope", attention="blocked")
    with pytest.raises(UserError, match="E-POS"):
        certify(model, torch.device("cpu"), torch.float32)


def test_layers_of_other_kinds_follow_in_what_they_do_not_say():
    config = load(["position=rope", "layers.pattern=[default,nope,still]", "+layers.types.nope.position.scheme=nope",
                   "+layers.types.still.logit_scale.name=none"]).config  # fmt: skip
    model = build_model(config, 101)
    model.set_logit_scale(scale("log", 100))
    assert {kind: each.name for kind, each in model.logit_scales.items()} == {
        "default": "log", "nope": "log", "still": "none",
    }  # fmt: skip


def test_none_is_nothing():
    assert logit_scale(scale("none"), torch.arange(9)[None], 4) is None


ADDING = ["rope", "alibi_plain", "alibi_folded", "t5", "shaw", "transformer_xl", "fire", "fox"]
SEEING = {"causal": {"name": "causal"}, "rerope": {"name": "rerope", "window": 6}}
# fox carries along the keys, so all that is seen must be one view
BY_KERNEL = [
    (kernel, scheme, seen)
    for kernel in ("blocked", "flex", "auto")
    for seen in SEEING
    for scheme in ADDING
    if (scheme, seen) != ("fox", "rerope")
]
QUICK = [case for case in BY_KERNEL if case[0] == "blocked"] + BY_KERNEL[15::6]


@pytest.mark.parametrize(("kernel", "scheme", "attention_pattern"), slow_unless(QUICK, BY_KERNEL))
@torch.no_grad()
def test_every_kernel_multiplies_all_that_is_added_up(tokens_BT, kernel, scheme, attention_pattern):
    """Folded ALiBi too, whose bias stands in queries and keys. The definition: scores times the factor."""
    seen = SEEING[attention_pattern]
    of_scheme = SCHEMES[scheme] | ({"memory_len": 0} if scheme == "transformer_xl" else {})
    model = replace(LLAMA, logit_scale=scale("log", 4))
    x_BTC, expected = (
        build(model, of_scheme, seen, attention=name).double().eval().hidden(tokens_BT(1, 20))
        for name in (kernel, "eager")
    )
    torch.testing.assert_close(x_BTC, expected)
    assert not torch.allclose(x_BTC, build(LLAMA, of_scheme, seen).double().eval().hidden(tokens_BT(1, 20)), atol=1e-6)


@pytest.mark.parametrize("n_keys", [1100])
def test_tiles_have_the_gradient_of_the_definition(n_keys):
    """Beyond 1,024 keys scores are made tile by tile, in the backward pass once more."""
    model = build(replace(LLAMA, n_layers=1, logit_scale=scale("log", 16)), "alibi_plain", attention="blocked").double()
    tokens_1T = torch.arange(n_keys)[None] * 7919 % 101
    gradients = []
    for name in ("eager", "blocked"):
        model.attention = name
        gradients.append(
            torch.autograd.grad(model.hidden(tokens_1T)[:, ::97].sum(), model.blocks[0].attention.q.weight)[0]
        )
    torch.testing.assert_close(*gradients)
    assert set(KERNELS) >= {"eager", "blocked"}


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_normalised_heads_with_every_scheme(scheme, tokens_BT):
    """Cached equals uncached, and the length of what is projected no longer matters."""
    of_scheme = SCHEMES[scheme] | ({"memory_len": 0} if scheme == "transformer_xl" else {})
    model = build(replace(LLAMA, qk_norm="head", norm_eps=1e-30), of_scheme).double().eval()
    tokens = tokens_BT(1, 20)
    whole, cache = model.hidden(tokens), model.new_cache(20)
    parts = [model.hidden(tokens[:, :7], cache=cache), model.hidden(tokens[:, 7:], cache=cache)]
    close = {"rtol": 1e-3, "atol": 1e-5} if scheme == "xpos" else {}
    torch.testing.assert_close(torch.cat(parts, 1), whole, **close)
    for block in model.blocks:
        block.attention.q.weight *= 3.0
        block.attention.k.weight *= 5.0
    torch.testing.assert_close(model.hidden(tokens), whole, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_logit_scale_counts_from_the_beginning_of_a_document(tokens_BT):
    model = build(replace(LLAMA, logit_scale=scale("log", 3)), "rope").double().eval()
    tokens, doc = tokens_BT(1, 20), torch.tensor([[0] * 8 + [1] * 12])
    pos = torch.cat([torch.arange(8), torch.arange(12)])[None]
    torch.testing.assert_close(model.hidden(tokens, pos, doc)[:, 8:], model.hidden(tokens[:, 8:]))
    model.set_attention_pattern(patterns.settings({"name": "segments", "length": 10}))
    torch.testing.assert_close(model.hidden(tokens)[:, 10:], model.hidden(tokens[:, 10:]))
