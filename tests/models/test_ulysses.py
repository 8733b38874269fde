"""A sequence that ranks share (models/ulysses.py) against the whole one, in float64: losses and every gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coca_train.config.schema import LayersConfig, LayerTypeConfig, LogitScaleConfig
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.positions import settings as position_settings
from coca_train.runtime import IGNORE
from coca_train.testing.definition import ATTENTION_PATTERNS
from coca_train.testing.parts import build as build_scheme
from coca_train.testing.parts import packed, refused
from tests.cases import sampled
from tests.models.conftest import LLAMA, SCHEMES, build
from tests.models.slices import on_ranks

MIXING = [name for name in SCHEMES if name.startswith("dape")]
CASES = {name: scheme for name, scheme in SCHEMES.items() if name not in MIXING} | {
    "rope_dynamic": {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": {"name": "dynamic_ntk", "alpha": 2.0}},
    "transformer_xl_own": SCHEMES["transformer_xl"] | {"shared": False},
    "kerple_own": SCHEMES["kerple_log"] | {"shared": False},
}
CASES["rope_dynamic"]["rope_scaling"] |= {"theta": 100.0, "original_seq_len": 8}
CASES["rope_penalised"] = CASES["rope_dynamic"] | {"angle_penalty": 0.7}
CASES["transformer_xl"] = SCHEMES["transformer_xl"] | {"memory_len": 0}
CASES["transformer_xl_own"] |= {"memory_len": 0}
DOCUMENTS = {"one": None, "packed": ([3, 8, 5, 12], [17, 11])}
N_TOKENS = 28


def batch(documents: str) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 101, (2, N_TOKENS + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[0, 5:9] = targets[1, 20] = IGNORE
    pos, doc = torch.arange(N_TOKENS).expand(2, -1), None
    if DOCUMENTS[documents] is not None:
        pos, doc = packed(*DOCUMENTS[documents])
    return {"tokens_BT": tokens[:, :-1], "targets_BT": targets, "pos_BT": pos, "doc_BT": doc}


def step(model: Transformer, given: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """The summed loss, and every gradient."""
    model.zero_grad()
    loss = model(**given)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check(model: Transformer, size: int, given: dict[str, Any]) -> None:
    """Ranks that share: their losses and gradients add up to those of one that has all."""
    loss, gradients = step(model, given)
    shares, _ = on_ranks(model, size, lambda own: step(own, given))
    torch.testing.assert_close(torch.stack([part for part, _ in shares]).sum(), loss, rtol=1e-6, atol=0)
    for name, expected in gradients.items():
        total = sum(part[name] for _, part in shares)
        torch.testing.assert_close(total, expected, rtol=1e-7, atol=1e-8 * float(expected.abs().max() + 1), msg=name)


@pytest.mark.parametrize(
    ("scheme", "attention_pattern", "documents", "size"),
    sampled(CASES, ATTENTION_PATTERNS, DOCUMENTS, (2, 4), strength=1),
)
def test_every_scheme_equals_the_whole_sequence(scheme: str, attention_pattern: str, documents: str, size: int) -> None:
    """GQA: two key/value heads on two ranks, and fewer than ranks on four."""
    if refused(ATTENTION_PATTERNS[attention_pattern], build_scheme(position_settings(CASES[scheme]))):
        pytest.skip("they do not go together")
    model = build(LLAMA, CASES[scheme], ATTENTION_PATTERNS[attention_pattern]).double().train()
    check(model, size, batch(documents))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_any_number_of_key_heads(n_kv_heads: int) -> None:
    """Twelve query heads on four ranks: repeated to 4, 4, 12, 12."""
    config = replace(LLAMA, n_heads=12, n_kv_heads=n_kv_heads)
    for scheme in ("tupe", "coca", "disentangled"):
        check(build(config, CASES[scheme]).double(), 4, batch("packed"))


def test_layers_of_several_kinds_logit_scales_and_checkpointing() -> None:
    kinds = {
        "local": LayerTypeConfig(attention_pattern={"name": "sliding_window", "window": 5}),
        "nope": LayerTypeConfig(position={"scheme": "nope"}, logit_scale={"name": "steps", "length": 4}),
    }
    config = replace(LLAMA, n_layers=3, qk_norm="head", logit_scale=LogitScaleConfig(name="log", length=6, beta=0.1))
    layers = LayersConfig(pattern=["default", *kinds], types=kinds)
    for attention in ("eager", "blocked"):
        model = build(config, "coca", layers=layers, attention=attention, activation_checkpointing="full", mlp_tile=3)
        check(model.double().train(), 4, batch("packed"))


def test_scores_and_logits_are_whole_on_every_rank() -> None:
    """Of rows that do not divide evenly too, and of stretches of them."""
    model, given = build(LLAMA, CASES["rope_dynamic"]).double().eval(), batch("one")
    tokens, targets = given["tokens_BT"][:, :26], given["targets_BT"][:, :26]
    for wanted in (None, [(2, 9), (20, 26)]):
        expected = model.losses(tokens, targets, wanted=wanted)
        for got in on_ranks(model, 4, lambda own: own.losses(tokens, targets, wanted=wanted))[0]:  # noqa: B023
            torch.testing.assert_close(got, expected)
    with torch.no_grad():
        expected = model(tokens)
        for got in on_ranks(model, 4, lambda own: own(tokens).detach())[0]:
            torch.testing.assert_close(got, expected)


def test_coca_sends_half_a_key() -> None:
    """q, k and v of a slice go out once each way, k at half width: 2.5 + 1 widths of a head for 4 of RoPE."""
    given, sent = batch("one"), {}
    for scheme in ("rope", "coca"):
        config = replace(LLAMA, n_kv_heads=None)
        with torch.no_grad():
            meeting = on_ranks(build(config, CASES[scheme]), 2, lambda own: own(**given))[1]
        sent[scheme] = meeting.sent[0]
    one = config.n_layers * given["tokens_BT"].numel() // 2 * config.d_model
    assert sent == {"rope": 4 * one, "coca": int(3.5 * one)}


def test_ranks_draw_alike_but_for_what_is_their_own() -> None:
    inside, after = set(), set()
    for rank in range(4):
        torch.manual_seed(3)
        with SequenceShare(rank, 4, lambda x: x).own_randomness(torch.device("cpu")):
            inside.add(float(torch.rand(())))
        after.add(float(torch.rand(())))
    assert (len(inside), len(after)) == (4, 1)
