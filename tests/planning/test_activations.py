"""Activations: against what autograd really keeps on the CPU, and against a published count."""

import pytest
import torch
from torch import nn

from coca_train.build import build_model
from coca_train.planning.step import Activations, activations
from tests.planning.conftest import TINY, configure, outlined
from tests.positions.support import shipped

SMALL = (*TINY, "model.n_layers=2", "train.micro_batch_size=2")


def planned(*words: str, trainable: tuple[str, ...] = ("*",), device: str = "cpu", **how: bool) -> Activations:
    given = {"checkpointing": False, "keeps_gradients": False} | how
    found = outlined(*words, trainable=trainable)
    return activations(found, found.config.train.micro_batch_size, device, **given)


def kept(*words: str, trained: str = "") -> int:
    """Bytes that a real forward on the CPU leaves to its backward: tensors packed away, each memory once."""
    config = configure(*words)
    model = build_model(config, 320)
    for name, parameter in model.named_parameters():
        nn.init.constant_(parameter, 0.01)
        parameter.requires_grad_(trained in name)
    if config.engine.dtype == "bf16":
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    tokens_BT = torch.zeros(2, config.train.seq_len, dtype=torch.int64)
    pos_BT = torch.arange(config.train.seq_len).expand(2, -1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(tokens_BT, tokens_BT, pos_BT)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in packed}
    shared = tokens_BT.untyped_storage().data_ptr()
    return sum(s.nbytes() for address, s in storages.items() if address not in own | {shared})


@pytest.mark.parametrize("scheme", sorted(name for name, _ in shipped()))
def test_what_every_scheme_keeps(scheme: str) -> None:
    """To 6 %: tables and masks are the host's own in one count, and some schemes keep them."""
    words = (*SMALL, f"position={scheme}", *(("data.order=stream",) if scheme == "transformer_xl" else ()))
    if scheme == "transformer_xl":
        words = (*words, "position.memory_len=0")
    found = planned(*words)
    assert found.kept + found.tables == pytest.approx(kept(*words), rel=0.06)


@pytest.mark.parametrize("trained", ["head", "blocks.1.attention.k", "attention.k", "mlp.down", "embed"])
def test_what_frozen_parts_do_not_keep(trained: str) -> None:
    patterns = (f"*{trained}*",)
    assert planned(*SMALL, "position=rope", trainable=patterns).kept == pytest.approx(
        kept(*SMALL, "position=rope", trained=trained), rel=0.03
    )


def test_float32_and_what_checkpointing_keeps() -> None:
    words = (*SMALL, "position=coca", "engine.dtype=fp32")
    assert planned(*words).kept == pytest.approx(kept(*words), rel=0.06)
    tokens, layers, width = 2 * 64, 2, 256
    found, less = planned(*words, checkpointing=True), planned(*words, "model.n_layers=1", checkpointing=True)
    assert found.kept - less.kept == (layers - 1) * tokens * width * 4  # the input of a block, nothing else
    assert planned(*words).kept > 3 * found.kept


def per_layer(*words: str, checkpointing: bool = False) -> float:
    counts = [planned(*words, f"model.n_layers={n}", device="cuda", checkpointing=checkpointing).kept for n in (2, 3)]
    return counts[1] - counts[0]


def test_a_gpt_layer_keeps_what_korthikanti_counts() -> None:
    """Reducing Activation Recomputation, arXiv 2205.05198, equation 1: 34 s·b·h bytes in 16 bits (and 5 a·s²·b without
    fused attention). Here without dropout, whose two masks are 2 of the 34, and with the fused kernel's log-sum-exp and
    the norms' means and deviations."""
    words = (
        *TINY,
        "position=nope",
        "model.norm=layernorm",
        "model.bias=true",
        "model.activation=gelu",
        "engine.dtype=bf16",
    )
    words = (*words, "model.n_kv_heads=null", "model.d_ff=1024", "train.seq_len=512", "train.micro_batch_size=4")
    s, b, h, a = 512, 4, 256, 8
    small = 4 * s * b * a + 2 * 2 * 4 * s * b
    assert per_layer(*words) == pytest.approx(32 * s * b * h + small, rel=0.0005)
    assert per_layer(*words, checkpointing=True) == 2 * s * b * h  # the input of the block, nothing else


def test_a_llama_layer_by_hand() -> None:
    """bf16: the inputs of two norms and what they give (8 C), q, k, v, the attention's output (8 C), up, gate,
    silu(gate) and their product (8 F); float32: the log-sum-exp, and the scale of the two norms."""
    words = (*TINY, "position=nope", "model.n_kv_heads=null", "train.micro_batch_size=4", "train.seq_len=512")
    assert per_layer(*words) == 4 * 512 * (8 * 256 + 8 * 256 + 8 * 704 + 4 * 8 + 4 * 2)


def test_gradients_that_stay_are_counted_once_each() -> None:
    words = (*SMALL, "position=rope", "engine.dtype=bf16", "train.seq_len=16")
    released, staying = (planned(*words, keeps_gradients=keeps) for keeps in (False, True))
    n_bytes = 2 * outlined(*words).n_parameters
    assert released.kept == staying.kept
    assert 0.5 * n_bytes < staying.peak - released.peak <= n_bytes


def test_activations_and_tables_grow_with_the_micro_batch() -> None:
    one, two = (planned(*TINY, "position=rope", f"train.micro_batch_size={n}") for n in (4, 8))
    assert two.kept / one.kept == pytest.approx(2, rel=0.05)
    assert one.tables - 3 * 4 * 64 * 8 == 2 * 4 * 64 * 32 * 4  # cos and sin; tokens, targets and positions


def test_long_attention_is_linear_in_memory_on_both_devices() -> None:
    for scheme, device in (("rope", "cpu"), ("rope", "cuda"), ("t5", "cpu"), ("t5", "cuda")):
        words = (*TINY, f"position={scheme}", "model.n_layers=2", "train.micro_batch_size=1", "engine.dtype=bf16")
        short, long = (planned(*words, f"train.seq_len={n}", device=device) for n in (2048, 4096))
        assert long.kept / short.kept == pytest.approx(2, rel=0.08)


def test_the_definition_is_quadratic() -> None:
    words = (*TINY, "position=rope", "model.n_layers=2", "train.micro_batch_size=1", "engine.attention=eager")
    short, long = (planned(*words, f"train.seq_len={n}") for n in (1024, 2048))
    assert long.kept / short.kept > 3


def test_a_frozen_head_makes_no_gradient_of_itself_in_the_loss() -> None:
    words = (*SMALL, "position=rope", "model.vocab_size=32000")
    all_of_it = planned(*words, trainable=("blocks.*", "head.weight"))
    frozen = planned(*words, trainable=("blocks.*",))
    assert all_of_it.kept - frozen.kept == 32000 * 256 * 2  # bf16
