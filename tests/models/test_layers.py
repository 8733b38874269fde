"""A model whose layers are of several kinds: against a loop over them written by hand, and what it promises."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from coca_train.attention import patterns
from coca_train.config.schema import LayersConfig, LayerTypeConfig, LogitScaleConfig
from coca_train.models.certificate import certify
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from tests.models.conftest import CAUSAL, LLAMA, SCHEMES, build, settings

WINDOW = {"name": "sliding_window", "window": 5}
LOCAL = LayerTypeConfig(position={"rope_scaling": {"theta": 100.0}}, attention_pattern=WINDOW)
STEPS = {"name": "steps", "length": 4, "beta": 0.3}
NOPE = LayerTypeConfig(position={"scheme": "nope"}, logit_scale=STEPS)
LAYERS = LayersConfig(pattern=["default", "local", "nope"], types={"local": LOCAL, "nope": NOPE})
MODEL = replace(LLAMA, n_layers=5, qk_norm="head")  # own, local, nope, own, local
CPU = torch.device("cpu")


def scheduled(scheme="rope", layers=LAYERS, model=MODEL, **options):
    return build(model, scheme, layers=layers, **options).double().eval()


def by_hand(model, tokens_BT, pos_BT, doc_BT):
    """Logits of [rope theta 10,000 full, rope theta 100 in a window of 5, nope with steps], from the formulas."""
    weights = {name: parameter for name, parameter in model.named_parameters()}
    distance_BTS = pos_BT[:, :, None] - pos_BT[:, None, :]
    causal_BTS = torch.ones(pos_BT.shape[1], pos_BT.shape[1]).tril().bool() & (doc_BT[:, :, None] == doc_BT[:, None, :])
    x = weights["embed.weight"][tokens_BT]
    for layer in range(5):
        theta, window, steps = [(10000.0, None, False), (100.0, 5, False), (None, None, True)][layer % 3]
        w = {name.removeprefix(f"blocks.{layer}."): value for name, value in weights.items()}
        normed = rms(x, w["attention_norm.weight"])
        q, k, v = ((normed @ w[f"attention.{name}.weight"].T).unflatten(-1, (-1, 12)).transpose(1, 2) for name in "qkv")
        q, k = rms(q, w["attention.q_norm.weight"]), rms(k, w["attention.k_norm.weight"])
        if theta is not None:
            angle = pos_BT[:, None, :, None] * torch.tensor([theta ** (-2 * j / 12) for j in range(6)])
            q, k = turned(q, angle), turned(k, angle)
        scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / math.sqrt(12)
        if steps:
            scores = scores * (1 + 0.3 * torch.log(1.0 + (pos_BT + 1) // 4))[:, None, :, None]
        seen = causal_BTS if window is None else causal_BTS & (distance_BTS < window)
        mixed = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
        x = x + mixed.transpose(1, 2).flatten(-2) @ w["attention.out.weight"].T
        normed = rms(x, w["mlp_norm.weight"])
        up, gate = normed @ w["mlp.up.weight"].T, F.silu(normed @ w["mlp.gate.weight"].T)
        x = x + (up * gate) @ w["mlp.down.weight"].T
    return rms(x, weights["final_norm.weight"]) @ weights["head.weight"].T


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x, angle):
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


@pytest.mark.parametrize("attention", ["eager", "blocked", "auto"])
def test_equals_its_layers_written_by_hand(tokens_BT, attention):
    """Outputs and gradients, with grouped heads, documents that do not see each other, and norms that are not one."""
    model, tokens = scheduled(attention=attention), tokens_BT(2, 24)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data += torch.randn(parameter.shape, generator=generator).double() / 4
    doc = torch.tensor([[0] * 24, [0] * 9 + [1] * 15])
    pos = torch.stack([torch.arange(24), torch.cat([torch.arange(9), torch.arange(15)])])
    logits_BTV, expected = model.head(model.hidden(tokens, pos, doc)), by_hand(model, tokens, pos, doc)
    torch.testing.assert_close(logits_BTV, expected.float())
    parameters = list(model.parameters())
    goal = torch.randn(expected.shape, generator=generator)
    hidden = model.hidden(tokens, pos, doc) @ model.head.weight.T  # the head's logits are float32
    ours, theirs = (torch.autograd.grad((x * goal).sum(), parameters) for x in (hidden, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)  # angles are float32 on our side


@pytest.mark.parametrize("scheme", ["rope", "coca", "alibi", "t5", "fire", "fox", "dape", "transformer_xl"])
@torch.no_grad()
def test_cached_decoding_equals_full_recompute_across_the_window(scheme, tokens_BT):
    layers = replace_kinds(LAYERS, local=LayerTypeConfig(attention_pattern=WINDOW))
    model, tokens = scheduled(one_kind_of_memory(scheme), layers), tokens_BT(2, 33)
    cache = model.new_cache(33)
    parts = [model.hidden(tokens[:, :9], cache=cache), model.hidden(tokens[:, 9:14], cache=cache)]
    forked = cache.fork(2, 33)
    parts += [model.hidden(tokens[:, i : i + 1], cache=forked) for i in range(14, 33)]
    torch.testing.assert_close(torch.cat(parts, 1), model.hidden(tokens))


@torch.no_grad()
def test_only_layers_with_a_window_forget(tokens_BT):
    """own, local, nope, own, local; a key and a value have 2 x 12 numbers of 8 bytes each."""
    model, held = scheduled(), []
    for n_tokens in (20, 33):
        cache = model.new_cache(n_tokens)
        model.hidden(tokens_BT(1, n_tokens), cache=cache)
        held.append(cache.n_bytes)
    per_token = 2 * 2 * 12 * 8
    assert held == [(3 * n + 2 * 5) * per_token for n in (20, 33)]


def replace_kinds(layers, **kinds):
    return LayersConfig(pattern=layers.pattern, types=layers.types | kinds)


def one_kind_of_memory(scheme):
    return SCHEMES[scheme] | ({"memory_len": 0} if scheme == "transformer_xl" else {})


def test_own_keeps_its_names_and_kinds_have_theirs():
    names = {
        name
        for name, _ in build(MODEL, "tupe", layers=replace_kinds(LAYERS, local=LayerTypeConfig())).named_parameters()
    }
    own = {name for name, _ in build(MODEL, "tupe").named_parameters()}
    shared = {name for name in own if name.startswith("position.")}
    assert shared
    assert shared <= names
    assert {name.replace("position.", "position_local.") for name in shared} <= names
    assert not any(name.startswith("position_nope") for name in names)


def test_parameters_start_as_the_scheme_of_their_layer_says():
    """KERPLE's numbers are uniform over (0, 2); another scheme's, and other layers', are not touched by that."""
    layers = LayersConfig(
        pattern=["default", "other"], types={"other": LayerTypeConfig(position=SCHEMES["kerple_log"])}
    )
    model = build(
        replace(MODEL, n_heads=24, n_kv_heads=24, d_model=48, init_std=1e-3, n_layers=2), "nope", layers=layers
    )
    assert 0.5 < model.position_of("other").r1.mean() < 1.5
    assert not hasattr(model.position, "r1")


@torch.no_grad()
def test_other_frequencies_reach_all_kinds_that_have_none_of_their_own(tokens_BT):
    named = {"rope_scaling": {"name": "plain", "theta": 100.0}}
    layers = replace_kinds(
        LAYERS, named=LayerTypeConfig(position=named), local=LayerTypeConfig(attention_pattern=WINDOW)
    )
    model = scheduled(layers=LayersConfig(pattern=["default", "local", "named"], types=layers.types))
    before = model.hidden(tokens_BT())
    linear = SCHEMES["rope"] | {"rope_scaling": {"name": "linear", "theta": 10000.0, "factor": 4.0}}
    with model.restored():
        model.set_position(settings(linear)[0])
        model.set_attention_pattern(patterns.settings({"name": "sliding_window", "window": 9}))
        names = {kind: model.position_of(kind).settings.rope_scaling.name for kind in model.layer_types}
        windows = {kind: getattr(model.attention_patterns[kind].settings, "window", None) for kind in model.layer_types}
        assert not torch.equal(model.hidden(tokens_BT()), before)
    assert names == {"default": "linear", "local": "linear", "named": "plain"}
    assert windows == {"default": 9, "local": 5, "named": 9}
    assert torch.equal(model.hidden(tokens_BT()), before)


def test_a_certificate_for_each_kind():
    by_kind = certify(build(MODEL, "rope", layers=LAYERS), CPU, torch.float32)
    assert list(by_kind) == ["default", "local", "nope"]
    assert by_kind["local"].effect > 1e-3
    assert by_kind["nope"].effect == by_kind["nope"].logits_effect == 0


@pytest.mark.parametrize("kind", ["default", "local"])
def test_no_certificate_where_one_kind_is_silently_off(monkeypatch, kind):
    model = build(MODEL, "rope", layers=LAYERS)
    monkeypatch.setattr(model.position_of(kind), "rotate", lambda q, k, tables: (q, k))
    where = "position.scheme" if kind == "default" else "layers.types.local.position.scheme"
    with pytest.raises(ValueError, match=f"E-POS-02 {where}=rope"):
        certify(model, CPU, torch.float32)


def test_a_logit_scale_does_not_pass_for_a_scheme(monkeypatch):
    """It knows positions too: the logits change with them though the scheme is dead."""
    scaled = replace(MODEL, logit_scale=LogitScaleConfig(name="steps", length=2, beta=1.0))
    certify(build(scaled, "rope"), CPU, torch.float32)
    model = build(scaled, "rope")
    monkeypatch.setattr(model.position, "rotate", lambda q, k, tables: (q, k))
    with pytest.raises(ValueError, match="E-POS-02"):
        certify(model, CPU, torch.float32)


@pytest.mark.parametrize("scheme", ["learned", "tupe"])
def test_positions_end_where_the_shortest_table_does(scheme):
    layers = LayersConfig(pattern=["default", "nope"], types={"nope": LayerTypeConfig(position={"scheme": "nope"})})
    assert build(MODEL, SCHEMES[scheme] | {"max_len": 40}, layers=layers).max_positions == 40
    own = LayersConfig(
        pattern=["default", "short"], types={"short": LayerTypeConfig(position=SCHEMES["tupe"] | {"max_len": 7})}
    )
    assert build(MODEL, "rope", layers=own).max_positions == 7


def test_the_same_weights_with_and_without_a_schedule():
    """Initial values are those of the name: a schedule of nope layers leaves every other parameter as it was."""
    plain, mixed = build(MODEL, "rope").state_dict(), build(MODEL, "rope", layers=LAYERS).state_dict()
    assert plain.keys() == mixed.keys()
    assert all(torch.equal(plain[name], mixed[name]) for name in plain)


@pytest.mark.parametrize("wanted", [None, [(20, 24), (30, 33)]])
@torch.no_grad()
def test_wanted_stretches_have_the_last_layers_kind(tokens_BT, wanted):
    model, tokens = scheduled(), tokens_BT()
    whole = model.hidden(tokens)
    expected = whole if wanted is None else torch.cat([whole[:, begin:end] for begin, end in wanted], 1)
    torch.testing.assert_close(model.hidden(tokens, wanted=wanted), expected)


def test_activation_checkpointing_changes_nothing(tokens_BT):
    tokens, grads = tokens_BT(), []
    for way in ("none", "selective", "full"):
        model = build(
            MODEL,
            "coca",
            layers=replace_kinds(LAYERS, local=LayerTypeConfig(attention_pattern=WINDOW)),
            activation_checkpointing=way,
        )
        model.train()(tokens[:, :-1], tokens[:, 1:]).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*grads, strict=True))


def test_a_kind_that_is_not_in_the_pattern_leaves_no_trace():
    unused = LayersConfig(pattern=[], types={"local": LayerTypeConfig(position=SCHEMES["t5"])})
    model = Transformer(MODEL, *settings("rope", CAUSAL), vocab_size=101, max_seq_len=32, layers=unused)
    init_weights(model, MODEL, seed=3)
    assert model.state_dict().keys() == build(MODEL, "rope").state_dict().keys()
