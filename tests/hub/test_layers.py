"""Layers of several kinds against transformers: SmolLM3, the attention of Gemma 3, and what is refused by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers

from coca_train.hub import forms, layer_rules
from coca_train.hub.weights import open_source
from coca_train.models.transformer import Transformer, build_model
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime.errors import UserError
from coca_train.settings import load
from tests.hub import models
from tests.positions import support

WINDOW, WIDTH = 16, 64
SHAPE = {
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": models.VOCAB,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OURS = (
    f"model=llama_tiny model.d_model={WIDTH} model.n_heads=4 model.n_kv_heads=2 model.head_dim=16 model.d_ff=96 "
    "model.norm_eps=1e-6 train.seq_len=32 position=rope engine.attention=eager"
).split()


@contextmanager
def watched(layers: Any) -> Iterator[list[list[torch.Tensor]]]:
    """What goes into each layer's attention and what comes out, layer by layer."""
    seen: list[list[torch.Tensor]] = []
    handles = [
        layer.self_attn.register_forward_hook(
            lambda module, given, named, out: seen.append([named["hidden_states"], out[0]]), with_kwargs=True
        )
        for layer in layers
    ]
    yield seen
    for handle in handles:
        handle.remove()


def theirs(name: str, **config: Any) -> Any:
    torch.manual_seed(0)
    native = getattr(transformers, f"{name}Config" if name == "SmolLM3" else f"{name}TextConfig")(**(SHAPE | config))
    native._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(native).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def ours(words: list[str], layers: Any, one_plus: bool) -> Transformer:
    """With the weights of their attention layers. one_plus: whether their norms multiply by 1 + weight."""
    model = build_model(load([*OURS, f"model.n_layers={len(layers)}", *words]).config, models.VOCAB)
    for block, layer in zip(model.blocks, layers, strict=True):
        attention = block.get_submodule("attention")
        for name, projection in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("out", "o_proj")):
            attention.get_submodule(name).weight = layer.self_attn.get_submodule(projection).weight
        for name in ("q_norm", "k_norm") if one_plus else ():
            attention.get_submodule(name).weight = torch.nn.Parameter(1 + layer.self_attn.get_submodule(name).weight)
    return model.eval()


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
@torch.no_grad()
def test_attention_of_gemma_3(length):
    """Five layers with a window and one theta, one with another and none, queries and keys normalised by head."""
    other = theirs("Gemma3", num_hidden_layers=7, sliding_window=WINDOW, query_pre_attn_scalar=16)
    assert other.config.layer_types == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    words = ["layers=gemma3", f"layers.types.local.attention_pattern.window={WINDOW}", "model.qk_norm=head"]
    compare(other, ours(words, other.model.layers, one_plus=True), length)


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
@pytest.mark.parametrize("windowed", [False, True])
@torch.no_grad()
def test_attention_of_smollm3(length, windowed):
    window = {"use_sliding_window": True, "sliding_window": WINDOW} if windowed else {}
    rope = {"rope_theta": 10000.0, "rope_type": "default"}
    other = theirs("SmolLM3", num_hidden_layers=5, rope_parameters=rope, **window)
    words = ["layers=nope_every_fourth"]
    words += [f"layers.types.nope.attention_pattern={{name: sliding_window, window: {WINDOW}}}"] if windowed else []
    compare(other, ours(words, other.model.layers, one_plus=False), length)


def compare(other: Any, model: Transformer, length: int) -> None:
    tokens_BT = torch.randint(models.VOCAB, (2, length), generator=torch.Generator().manual_seed(1))
    with watched(other.model.layers) as seen:
        other(tokens_BT, use_cache=False)
    pos_BT = torch.arange(length)[None]
    contexts = model.contexts(pos_BT, pos_BT)
    assert len(seen) == len(model.blocks)
    for kind, block, (x_BTC, expected_BTC) in zip(model.layer_types, model.blocks, seen, strict=True):
        found_BTC = block.get_submodule("attention")(x_BTC, contexts[kind])
        assert (found_BTC - expected_BTC).abs().max() <= 1e-5 * max(1.0, expected_BTC.abs().max().item())


@pytest.mark.parametrize("wrong", ["theta", "window", "norm"])
@torch.no_grad()
def test_the_comparison_can_fail(wrong):
    other = theirs("Gemma3", num_hidden_layers=7, sliding_window=WINDOW, query_pre_attn_scalar=16)
    words = ["layers=gemma3", f"layers.types.local.attention_pattern.window={WINDOW + (wrong == 'window')}"]
    words += ["layers.types.local.position.rope_scaling.theta=9000.0"] if wrong == "theta" else []
    words += ["model.qk_norm=head"] if wrong != "norm" else []
    model = ours(words, other.model.layers, one_plus=wrong != "norm")
    with pytest.raises(AssertionError):
        compare(other, model, 5 * WINDOW)


@pytest.mark.parametrize(
    ("ropes", "types", "pattern"),
    [
        ([1, 1, 1, 0, 1], None, ["default", "default", "default", "nope"]),
        ([1, 0, 1, 0], None, ["default", "nope_local"]),
        ([1, 1], None, []),
        ([0, 1, 1], ["full_attention", "sliding_attention", "full_attention"], ["nope", "local", "default"]),
    ],
)
def test_lists_become_a_pattern_and_a_pattern_lists(ropes, types, pattern, tmp_path):
    window = 8 if "local" in str(pattern) else None
    assert layer_rules.ListedLayers().section(len(ropes), ropes, 4, types, window)["pattern"] == pattern
    config = {"no_rope_layers": ropes, "layer_types": types, "num_hidden_layers": len(ropes)}
    folder = models.write(tmp_path, "smollm3", **config, use_sliding_window=window is not None, sliding_window=window)
    with open_source(folder) as source:
        written = forms.choose(source.architecture, "smollm3")
    assert written["no_rope_layers"] == ropes
    expected = types or ["sliding_attention" if window and not rope else "full_attention" for rope in ropes]
    assert written["layer_types"] == expected


@pytest.mark.parametrize(
    ("given", "phrase"),
    [
        (([1, 1], 4, None, None), "no_rope_layers"),
        (([1, 2, 0], 4, None, None), "no_rope_layers"),
        ((None, 4, ["chunked_attention"] * 3, None), "layer_types: .*full_attention"),
        ((None, 4, ["sliding_attention"] * 3, None), "sliding_window"),
    ],
)
def test_schedules_that_make_no_sense(given, phrase):
    with pytest.raises(NotTheSame, match=phrase):
        layer_rules.ListedLayers().section(3, *given)


@pytest.mark.parametrize(
    ("model", "phrase"),
    [
        ({"logit_scale": {"name": "log", "length": None, "beta": 0.1}}, "logit scale"),
    ],
)
def test_options_that_no_native_class_has(model, phrase):
    architecture = models.random_source(support.rope(), **model).architecture
    with pytest.raises(UserError, match=f"E-IOP-15.*{phrase}"):
        forms.choose(architecture, "native")
    assert forms.choose(architecture, "auto")["model_type"] == "coca"
