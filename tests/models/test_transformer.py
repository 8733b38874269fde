"""What a model promises whatever its position scheme: causality, documents, cached decoding, initial weights. Of every
scheme: its contract, in tests/positions/."""

from dataclasses import replace

import pytest
import torch

from coca_train.models.certificate import certify
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer, count_parameters
from coca_train.positions.base import Terms
from tests.cases import sampled
from tests.models.conftest import LLAMA, NEOX, SCHEMES, build, settings


@pytest.mark.parametrize("scheme", ["rope", "alibi_plain", "fox"])
@pytest.mark.parametrize("config", [NEOX, LLAMA], ids=["neox", "llama"])
@torch.no_grad()
def test_changing_a_token_changes_nothing_before_it(scheme, config, tokens_BT):
    model = build(config, scheme).double().eval()
    tokens = tokens_BT()
    other = tokens.clone()
    other[:, 20] = (other[:, 20] + 1) % 101
    before, after = model.hidden(tokens), model.hidden(other)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 21:], after[:, 21:], atol=1e-6)


@pytest.mark.parametrize("scheme", ["rope", "alibi_plain", "fox"])
@torch.no_grad()
def test_documents_in_one_window_are_strangers(scheme, tokens_BT):
    """A packed document gives what it gives alone, and changing one changes no other."""
    model = build(LLAMA, scheme).double().eval()
    tokens = tokens_BT(1, 30)
    doc = torch.tensor([[0] * 11 + [1] * 19])
    pos = torch.cat([torch.arange(11), torch.arange(19)])[None]
    packed = model.hidden(tokens, pos_BT=pos, doc_BT=doc)
    torch.testing.assert_close(packed[:, 11:], model.hidden(tokens[:, 11:]))
    other = tokens.clone()
    other[:, :11] = (other[:, :11] + 7) % 101
    assert torch.equal(packed[:, 11:], model.hidden(other, pos_BT=pos, doc_BT=doc)[:, 11:])


@pytest.mark.parametrize("scheme", ["rope", "alibi_plain", "fox"])
@pytest.mark.parametrize("config", [NEOX, LLAMA], ids=["neox", "llama"])
@torch.no_grad()
def test_cached_decoding_equals_full_recompute(scheme, config, tokens_BT):
    model = build(config, scheme).double().eval()
    tokens = tokens_BT(2, 33)
    cache = model.new_cache(33)
    parts = [model.hidden(tokens[:, :9], cache=cache), model.hidden(tokens[:, 9:14], cache=cache)]
    parts += [model.hidden(tokens[:, i : i + 1], cache=cache) for i in range(14, 33)]
    torch.testing.assert_close(torch.cat(parts, 1), model.hidden(tokens))


@torch.no_grad()
def test_coca_cache_is_a_quarter_smaller_than_rope(tokens_BT):
    """Whatever the width of T, and in the dtype of the model: halves are averaged before they are cached. With
    keys that are rotated once it is as large."""
    for dtype, n_bytes in ((torch.float32, 4), (torch.bfloat16, 2)):
        sizes = {}
        for scheme in ("rope", "coca", "coca_half"):
            model = build(NEOX, scheme).to(dtype)
            model.hidden(tokens_BT(), cache=(cache := model.new_cache(33)))
            sizes[scheme] = cache.n_bytes
            model.hidden(tokens_BT(), cache=(cache := model.new_cache(33, at_length=33)))
            assert cache.n_bytes == sizes["rope"]
        assert sizes["rope"] == 2 * 2 * 33 * 2 * 48 * n_bytes  # layers, rows, tokens, keys and values of all heads
        assert sizes["coca"] == sizes["coca_half"] == 0.75 * sizes["rope"]


def test_cache_refuses_to_overflow(tokens_BT):
    model = build(NEOX, "rope")
    with pytest.raises(ValueError, match="8 positions; 9"):
        model.hidden(tokens_BT(1, 9), cache=model.new_cache(8))


@pytest.mark.parametrize("config", [NEOX, LLAMA], ids=["neox", "llama"])
def test_shared_weights_start_equal_whatever_the_scheme(config):
    """T starts as K; T of half width as the mean of K's halves, at 1/√2 of its std."""
    states = {name: build(config, name).state_dict() for name in SCHEMES}
    for name, state in states.items():
        for key, reference in states["rope"].items():
            if name == "coca_half" and ".attention.k." in key:
                by_group = reference.unflatten(0, (config.n_kv_heads or config.n_heads, 2, -1))
                assert torch.equal(state[key], by_group.mean(1).flatten(0, 1)), key
            else:
                assert torch.equal(state[key], reference), (name, key)
    std = torch.cat([states["coca_half"][f"blocks.{layer}.attention.k.weight"] for layer in (0, 1)]).std().item()
    assert std == pytest.approx(config.init_std / 2**0.5, rel=0.05)


@torch.no_grad()
def test_both_widths_begin_as_one_function(tokens_BT):
    full, half = (build(LLAMA, name).double() for name in ("coca", "coca_half"))
    torch.testing.assert_close(full.hidden(tokens_BT()), half.hidden(tokens_BT()), rtol=0, atol=1e-6)


def test_initial_weights_follow_the_config():
    config = replace(NEOX, d_model=96, init_std=0.02, init_depth_scaled=True)
    state = build(config, "rope").state_dict()
    assert state["embed.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert state["blocks.1.mlp.down.weight"].std().item() == pytest.approx(0.02 / 2, rel=0.05)  # sqrt(2 * 2 layers)
    assert state["blocks.1.mlp.up.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert not state["blocks.0.attention.q.bias"].any()
    assert (state["final_norm.weight"] == 1).all()


def test_seed_changes_every_matrix():
    a, b = build(NEOX, "rope"), build(NEOX, "rope")
    init_weights(b, NEOX, seed=4)
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q) is (p.ndim == 1), name


def test_activation_checkpointing_changes_nothing(tokens_BT):
    tokens, grads = tokens_BT(), []
    for way in ("none", "selective", "full"):
        model = build(NEOX, "coca", activation_checkpointing=way)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*grads, strict=True))


def test_loss_equals_cross_entropy_of_the_logits(tokens_BT):
    model, tokens = build(NEOX, "alibi_plain").double(), tokens_BT()
    logits = model(tokens[:, :-1]).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]).float(), expected.sum().float())
    nll = model.nll(model.hidden(tokens[:, :-1]), tokens[:, 1:])
    torch.testing.assert_close(nll.flatten(), expected)


def test_tied_embeddings_count_once():
    untied, tied = build(NEOX, "rope"), build(replace(NEOX, tie_embeddings=True), "rope")
    assert count_parameters(untied)[0] - count_parameters(tied)[0] == 101 * 48
    assert count_parameters(untied)[1] == count_parameters(tied)[1]


def test_paper_parameter_counts():
    """The CoCA paper's shape: 508.9M, 302.3M without embeddings, for all; CoCA at half width has 12.6M fewer."""
    config = replace(NEOX, n_layers=24, d_model=1024, n_heads=16, d_ff=4096)
    with torch.device("meta"):
        counts = {
            name: count_parameters(Transformer(config, *settings(name), vocab_size=100864, max_seq_len=512))
            for name in ("rope", "alibi", "coca", "coca_strict", "coca_half")
        }
    assert counts["rope"] == counts["alibi"] == counts["coca"] == counts["coca_strict"]
    assert counts["rope"][0] == 508_880_896
    assert counts["rope"][1] == counts["rope"][0] - 2 * 100864 * 1024
    assert counts["rope"][0] - counts["coca_half"][0] == 24 * (1024 + 1) * 512


@pytest.mark.parametrize(
    ("scheme", "dtype", "kernel"), sampled(SCHEMES, [torch.float32, torch.bfloat16], ["sdpa", "blocked"])
)
def test_certificate_is_granted_to_every_scheme(scheme, dtype, kernel):
    model = build(replace(NEOX, init_std=0.02), scheme, attention=kernel).to(dtype)
    certify(model, torch.device("cpu"), dtype)


@pytest.mark.parametrize(
    ("hook", "value", "error"),
    [
        ("rotate", lambda q, k, tables: (q, k), "E-POS-02"),
        ("rotate", lambda q, k, tables: (q * 1.0, k * tables.key.cos_BT1R), "E-POS-03"),
        ("rotate", lambda q, k, tables: (q * torch.nan, k), "E-POS-01"),
    ],
)
def test_certificate_is_refused_to_a_dead_or_false_scheme(monkeypatch, hook, value, error):
    model = build(NEOX, "rope")
    monkeypatch.setattr(model.position, hook, value)
    with pytest.raises(ValueError, match=error):
        certify(model, torch.device("cpu"), torch.float32)


def test_certificate_is_refused_to_a_kernel_that_forgets_the_bias(monkeypatch):
    from coca_train.attention import kernels
    from coca_train.models import certificate

    model = build(NEOX, "alibi_plain")

    def forgetful(parts, v, scale):
        return kernels.eager([part._replace(terms=Terms()) for part in parts], v, scale)

    deaf = dict(kernels.KERNELS, auto=forgetful)
    monkeypatch.setattr(certificate, "KERNELS", deaf)
    with pytest.raises(ValueError, match="E-POS-01"):
        certify(model, torch.device("cpu"), torch.float32)
