"""Logits equal transformers' GPTNeoXForCausalLM and LlamaForCausalLM on the same weights (float32, 1e-5)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.models.conftest import LLAMA, NEOX, PLAIN, build

transformers = pytest.importorskip("transformers")


def neox_state(state: dict[str, Tensor], n_heads: int, n_layers: int) -> dict[str, Tensor]:
    """Our weights under Hugging Face's names; query, key and value interleaved by head."""
    out = {
        "gpt_neox.embed_in.weight": state["embed.weight"],
        "lm_head.weight": state["head.weight"],
        "gpt_neox.final_layer_norm.weight": state["final_norm.weight"],
        "gpt_neox.final_layer_norm.bias": state["final_norm.bias"],
    }
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "attention.dense": "attention.out",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    }
    for i in range(n_layers):
        for kind in ("weight", "bias"):
            for theirs, ours in names.items():
                out[f"gpt_neox.layers.{i}.{theirs}.{kind}"] = state[f"blocks.{i}.{ours}.{kind}"]
            parts = [state[f"blocks.{i}.attention.{p}.{kind}"].unflatten(0, (n_heads, -1)) for p in "qkv"]
            out[f"gpt_neox.layers.{i}.attention.query_key_value.{kind}"] = torch.cat(parts, 1).flatten(0, 1)
    return out


def llama_state(state: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    out = {
        "model.embed_tokens.weight": state["embed.weight"],
        "lm_head.weight": state["head.weight"],
        "model.norm.weight": state["final_norm.weight"],
    }
    names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
    names |= {
        f"self_attn.{theirs}_proj": f"attention.{ours}"
        for theirs, ours in zip("qkvo", ("q", "k", "v", "out"), strict=True)
    }
    names |= {f"mlp.{p}_proj": f"mlp.{p}" for p in ("up", "gate", "down")}
    for i in range(n_layers):
        for theirs, ours in names.items():
            out[f"model.layers.{i}.{theirs}.weight"] = state[f"blocks.{i}.{ours}.weight"]
    return out


@pytest.mark.parametrize("rotary_pct", [0.5, 1.0])
@pytest.mark.parametrize("residual", ["parallel", "sequential"])
def test_neox_logits(rotary_pct, residual, tokens_BT):
    config = replace(NEOX, residual=residual, n_heads=2, d_ff=100)  # head_dim 24
    ours = build(config, {"scheme": "rope", "rotary_pct": rotary_pct, "rope_scaling": PLAIN}).eval()
    for name, parameter in ours.named_parameters():
        if name.endswith("bias"):  # zero biases would hide a swap
            torch.nn.init.normal_(parameter, std=0.1)
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=100,
            vocab_size=101,
            use_parallel_residual=residual == "parallel",
            hidden_act="gelu",
            layer_norm_eps=1e-5,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rotary_pct},
            attn_implementation="eager",
        )
    ).eval()
    theirs.load_state_dict(neox_state(ours.state_dict(), 2, 2))
    _assert_same_logits(ours, theirs, tokens_BT(2, 64))


def test_neox_quarter_rotation(tokens_BT):
    """The GPT-NeoX-20B shape: a quarter of each head turns."""
    config = replace(NEOX, d_model=64, n_heads=2)  # head_dim 32, 8 rotated
    ours = build(config, {"scheme": "rope", "rotary_pct": 0.25, "rope_scaling": PLAIN}).eval()
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=96,
            vocab_size=101,
            hidden_act="gelu",
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            attn_implementation="eager",
        )
    ).eval()
    theirs.load_state_dict(neox_state(ours.state_dict(), 2, 2))
    _assert_same_logits(ours, theirs, tokens_BT(2, 64))


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_llama_logits(n_kv_heads, tokens_BT):
    ours = build(replace(LLAMA, n_kv_heads=n_kv_heads), "rope").eval()
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=n_kv_heads,
            intermediate_size=96,
            vocab_size=101,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            attn_implementation="eager",
        )
    ).eval()
    theirs.load_state_dict(llama_state(ours.state_dict(), 2))
    _assert_same_logits(ours, theirs, tokens_BT(2, 64))


@torch.no_grad()
def _assert_same_logits(ours, theirs, tokens_BT: Tensor) -> None:
    expected_BTV = theirs(tokens_BT).logits
    error = (ours(tokens_BT) - expected_BTV).abs().max().item()
    scale = expected_BTV.abs().max().item()
    assert scale > 1
    assert error <= 1e-5 * max(1.0, scale), (error, scale)
