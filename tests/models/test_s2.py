"""S²: in training halves of the heads see groups and shifted groups; elsewhere everything is seen."""

from dataclasses import replace

import pytest
import torch

from coca_train.attention import kernels, patterns
from coca_train.attention.pattern import Chunks, Rule, seen
from coca_train.config.messages import ConfigError
from coca_train.evaluation.variants import Choice, variants
from coca_train.hub.architecture import Architecture
from coca_train.models.certificate import certify
from coca_train.planning.meta_step import count_flops
from coca_train.planning.outline import outline
from coca_train.runtime.errors import UserError
from coca_train.settings import load
from coca_train.testing.parts import KERNELS, MODEL, refused, shipped, start
from coca_train.testing.parts import build as scheme_of
from coca_train.vary import vary
from tests.golden.methods import case, tensor
from tests.models.conftest import CAUSAL, NEOX, build

S2 = {"name": "s2", "window": 32, "group": 8}
SCHEMES = [name for name, settings in shipped() if not refused(S2, scheme_of(settings))]


def test_the_groups_are_the_papers_without_the_leak_of_its_code() -> None:
    given, expected = case("s2_attention")
    rules = patterns.build(patterns.settings(S2 | {"group": given["group"]})).in_training()
    pos = start(given["T"])
    (layout,) = patterns.build(patterns.settings(CAUSAL)).layouts(pos, pos)
    everything = slice(0, given["T"])
    for rule, half in zip(rules, ("first", "second"), strict=True):
        released = tensor(expected[f"seen_{half}_half_of_heads"]).bool()
        assert torch.equal(seen(layout._replace(rule=rule), everything, everything)[0], released.tril())


def test_a_quarter_of_the_window_is_the_group() -> None:
    assert patterns.build(patterns.settings(S2 | {"window": 1024, "group": None})).in_training() == (
        Rule(chunks=Chunks(256, 0, 0)),
        Rule(chunks=Chunks(256, 0, 0, ahead=128)),
    )


@pytest.mark.parametrize("half", [0, 1])
def test_a_head_reads_its_group_alone(half: int, tokens_BT) -> None:
    """What reaches a token, by gradients, through the heads of one half of a single layer."""
    model = build(replace(NEOX, n_layers=1), "rope", S2).double().train()
    with torch.no_grad():
        width = model.config.d_model // 2
        model.blocks[0].attention.out.weight[:, width * (1 - half) : width * (2 - half)] = 0
    x_BTC = model.embed(tokens_BT(1, 30)).detach().requires_grad_()
    context = model.contexts(start(30), start(30))["default"]
    out_BTC = model.blocks[0].attention(x_BTC, context)
    for m in range(30):
        (grad,) = torch.autograd.grad(out_BTC[0, m].sum(), x_BTC, retain_graph=True)
        read = grad[0].abs().sum(-1).nonzero().flatten().tolist()
        first = max(0, (m + 4 * half) // 8 * 8 - 4 * half)
        assert read == list(range(first, m + 1))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_kernel_computes_the_definition_in_training(scheme: str, tokens_BT, monkeypatch) -> None:
    """Documents and grouped heads among it; and evaluation is that of the causal model."""
    tokens, doc_BT = tokens_BT(2, 25), torch.tensor([[0] * 11 + [1] * 14, [0] * 25])
    pos_BT = torch.cat((torch.arange(11), torch.arange(14))).expand(2, -1).clone()
    pos_BT[1] = torch.arange(25)
    found = []
    for kernel in KERNELS:
        monkeypatch.setitem(kernels.KERNELS, kernel, KERNELS[kernel])
        model = build(replace(MODEL, learned_sink=True, score_cap=3.0), scheme, S2, attention=kernel).double().train()
        loss = model(tokens[:, :-1], tokens[:, 1:], pos_BT[:, :-1], doc_BT[:, :-1])
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
        causal = build(replace(MODEL, learned_sink=True, score_cap=3.0), scheme, attention=kernel).double().eval()
        assert torch.equal(model.eval()(tokens), causal(tokens))
        assert not torch.allclose(loss, causal(tokens[:, :-1], tokens[:, 1:], pos_BT[:, :-1], doc_BT[:, :-1]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_grouped_heads_are_repeated_ones(n_kv_heads: int, tokens_BT) -> None:
    grouped = build(replace(MODEL, n_kv_heads=n_kv_heads), "kerple_log", S2).double().train()
    whole = build(replace(MODEL, n_kv_heads=4), "kerple_log", S2).double().train()
    state = grouped.state_dict()
    for name, values in whole.state_dict().items():
        if name.endswith(("attention.k.weight", "attention.v.weight")):
            state[name] = state[name].unflatten(0, (n_kv_heads, -1)).repeat_interleave(4 // n_kv_heads, 0).flatten(0, 1)
        assert state[name].shape == values.shape
    whole.load_state_dict(state)
    tokens = tokens_BT(2, 25)
    torch.testing.assert_close(grouped(tokens), whole(tokens), rtol=1e-12, atol=1e-12)


def test_what_mixes_heads_a_state_and_a_memory_are_refused_by_name() -> None:
    settings = dict(shipped())
    settings["transformer_xl"] = settings["transformer_xl"] | {"memory_len": 8}
    found = {name for name, each in settings.items() if refused(S2, scheme_of(each))}
    assert found == {"dape", "linear_rope", "transformer_xl"}


def test_the_certificate_looks_at_what_is_trained(monkeypatch) -> None:
    model = build(MODEL, "rope", S2, attention="sdpa")
    assert certify(model, torch.device("cpu"), torch.float32)["default"].fused_error < 1e-5
    right = kernels.KERNELS["sdpa"]

    def past_groups(parts, v_BSGD, scale):
        return right([part._replace(layout=part.layout._replace(rule=Rule())) for part in parts], v_BSGD, scale)

    monkeypatch.setitem(kernels.KERNELS, "sdpa", past_groups)
    with pytest.raises(UserError, match="E-POS-01"):
        certify(model, torch.device("cpu"), torch.float32)


def test_flops_are_those_of_the_pairs_that_are_seen() -> None:
    """Groups twice as long as the text hide nothing."""
    words = ["+experiment=llama_tiny", "train.seq_len=64"]
    counted = []
    for more in ([], ["attention_pattern=s2", "attention_pattern.group=128"], ["attention_pattern=s2"]):
        config = load([*words, *more], launch=False).config
        counted.append(count_flops(outline(config, ["*"], 512)).total)
    assert counted[0] == counted[1] > counted[2]


def test_a_stage_with_another_window_has_groups_of_its_own() -> None:
    stage = "+stages.b={max_steps: 100, train: {seq_len: 256}}"
    with pytest.raises(ConfigError, match=r"E-CFG-91 .*a quarter of a window of 128 tokens, and 256 are trained on"):
        load(["+experiment=llama_tiny", "attention_pattern=s2", stage], launch=False)
    fixed = "+stages.b={max_steps: 100, train: {seq_len: 256}, attention_pattern: {window: 256}}"
    load(["+experiment=llama_tiny", "attention_pattern=s2", fixed], launch=False)


def test_elsewhere_it_is_causal_attention_by_name() -> None:
    config = load(["+experiment=llama_tiny", "attention_pattern=s2"], launch=False).config
    assert Architecture.of(config, 512).attention_pattern.name == "causal"  # so it goes out as a LLaMA
    causal = load(["+experiment=llama_tiny"], launch=False).config
    (found,) = variants(causal, [Choice(attention_pattern="s2")]).values()
    assert found.problem == "s2 is for training; elsewhere it is causal attention"
    with pytest.raises(ConfigError, match=r"E-CFG-44 .*s2 is for training; elsewhere it is causal attention"):
        vary(causal, ["attention_pattern=s2"])
    (own,) = variants(config, [Choice(rope_scaling="yarn@factor:4")]).values()
    assert not own.problem


def test_a_query_sees_a_group_at_most_in_training() -> None:
    rules = patterns.build(patterns.settings(S2))
    assert (rules.most_seen(training=True), rules.most_seen(training=False)) == (8, None)
