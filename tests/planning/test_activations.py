"""Activations: against what autograd really keeps on the CPU, and against a published count."""

from dataclasses import astuple
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from coca_train.attention.pattern import Layout, Rule
from coca_train.attention.scores import Part
from coca_train.models.layers import AttentionContext
from coca_train.models.transformer import build_model
from coca_train.planning import memory
from coca_train.planning.memory import Activations, watch_activations
from coca_train.planning.meta_attention import watched_kernel
from coca_train.planning.meta_step import MemoryTracker
from coca_train.positions.base import Terms
from coca_train.positions.token_positions import Positions
from coca_train.runtime.device import pretend_device
from coca_train.testing.parts import shipped
from tests.planning.conftest import TINY, configure, outlined

SMALL = (*TINY, "model.n_layers=2", "train.micro_batch_size=2")


def planned(*words: str, trainable: tuple[str, ...] = ("*",), device: str = "cpu", **how: Any) -> Activations:
    given: dict[str, Any] = {"checkpointing": "none", "keeps_gradients": False} | how
    outline = outlined(*words, trainable=trainable)
    return watch_activations(outline, outline.config.train.micro_batch_size, device, **given)


@cache
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
    plan = planned(*words)
    assert plan.kept + plan.tables == pytest.approx(kept(*words), rel=0.06)


@pytest.mark.parametrize("trained", ["head", "blocks.1.attention.k", "attention.k", "mlp.down", "embed"])
def test_what_frozen_parts_do_not_keep(trained: str) -> None:
    patterns = (f"*{trained}*",)
    plan = planned(*SMALL, "position=rope", trainable=patterns)
    tables = plan.tables if "attention" in trained else 0  # a rotation's backward is given its angles
    assert plan.kept + tables == pytest.approx(kept(*SMALL, "position=rope", trained=trained), rel=0.03)


def test_float32_and_what_checkpointing_keeps() -> None:
    words = (*SMALL, "position=coca", "engine.dtype=fp32")
    assert planned(*words).kept == pytest.approx(kept(*words), rel=0.06)
    tokens, layers, width = 2 * 64, 2, 256
    plan, less = planned(*words, checkpointing="full"), planned(*words, "model.n_layers=1", checkpointing="full")
    assert plan.kept - less.kept == (layers - 1) * tokens * width * 4  # the input of a block, nothing else
    assert planned(*words).kept > 3 * plan.kept


def per_layer(*words: str, checkpointing: str = "none") -> float:
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
        "model.bias=[qkv,out,mlp,norm]",
        "model.activation=gelu",
        "engine.dtype=bf16",
    )
    words = (*words, "model.n_kv_heads=null", "model.d_ff=1024", "train.seq_len=512", "train.micro_batch_size=4")
    s, b, h, a = 512, 4, 256, 8
    small = 4 * s * b * a + 2 * 2 * 4 * s * b
    assert per_layer(*words) == pytest.approx(32 * s * b * h + small, rel=0.0005)
    assert per_layer(*words, checkpointing="full") == 2 * s * b * h  # the input of the block, nothing else


def test_a_llama_layer_by_hand() -> None:
    """bf16: the inputs of two norms and what they give (8 C), q, k, v, the attention's output (8 C), up, gate,
    silu(gate) and their product (8 F); float32: the log-sum-exp, the scale of the two norms; 24 bytes are the random
    state of flash attention."""
    words = (*TINY, "position=nope", "model.n_kv_heads=null", "train.micro_batch_size=4", "train.seq_len=512")
    assert per_layer(*words) == 4 * 512 * (8 * 256 + 8 * 256 + 8 * 704 + 4 * 8 + 4 * 2) + 24


def test_gradients_that_stay_are_counted_once_each() -> None:
    words = (*SMALL, "position=rope", "engine.dtype=bf16", "train.seq_len=16")
    released, staying = (planned(*words, keeps_gradients=keeps) for keeps in (False, True))
    n_bytes = 2 * outlined(*words).n_parameters
    assert released.kept == staying.kept
    assert 0.5 * n_bytes < staying.peak - released.peak <= n_bytes


def test_one_model_may_be_watched_in_every_way() -> None:
    """What is watched leaves nothing behind: no hook, no gradient, no table."""
    outline = outlined(*SMALL, "position=rope", "engine.dtype=bf16", "train.seq_len=16")
    ways = [(checkpointing, keeps) for checkpointing in ("none", "selective", "full") for keeps in (False, True)]
    *seen, again = [
        watch_activations(outline, 2, "cpu", checkpointing=way, keeps_gradients=keeps)
        for way, keeps in (*ways, ways[0])
    ]
    assert seen[0] == again and len(set(seen)) == 6
    assert {each.reading for each in seen} == {again.reading}


def test_dropout_keeps_its_masks() -> None:
    words = (*SMALL, "position=rope", "engine.dtype=fp32")
    with_masks = (*words, "model.dropout=0.1")
    assert planned(*with_masks).kept - planned(*words).kept == pytest.approx(kept(*with_masks) - kept(*words), rel=0.01)
    assert planned(*with_masks).kept > planned(*words).kept


def test_tables_of_the_host_are_there_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*SMALL, "position=rope")
    before = planned(*words)
    tables = memory._table_bytes
    monkeypatch.setattr(memory, "_table_bytes", lambda context: tables(context) + 10**9)
    after = planned(*words)
    assert [b - a for a, b in zip(astuple(before), astuple(after), strict=True)] == [10**9, 0, 10**9, 10**9]


def test_a_table_that_is_seen_twice_is_there_once() -> None:
    table = torch.zeros(100)
    context = AttentionContext(None, None, [((table, table[10:], torch.zeros(5)), None)], None)  # type: ignore[arg-type]
    assert memory._table_bytes({"default": context}) == 400 + 20


def test_reading_keeps_nothing() -> None:
    """A forward of as many layers as one likes needs what one of them does."""
    few, many = (planned(*SMALL, "position=rope", f"model.n_layers={n}") for n in (2, 6))
    assert few.reading == many.reading < many.kept
    assert few.reading > few.tables + 2 * 64 * (2 * 256 + 3 * 704) * 2  # x and its norm, gate, up and their product


def attended(name: str, device: str, n: int, rows: int = 1) -> tuple[int, int]:
    """Bytes that are kept, and the most there are, in attention over n tokens, 4 heads of 16, in bf16."""
    heads = (rows, n, 4, 16)
    with MemoryTracker() as watch, pretend_device(device):
        q, k, v = (torch.empty(heads, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(3))
        layout = Layout(Rule(window=8), *[Positions.counted(0, n)] * 5, None, True, {})
        out = watched_kernel(name)([Part(q, k, Terms(), layout)], v, 1.0)
        held = watch.live
        grad = torch.empty_like(out)
        out.backward(grad)
        return held, watch.peak


@pytest.mark.parametrize("rows", [1, 3])
def test_attention_by_tiles_by_hand(rows: int) -> None:
    """q, k, v, the output and its gradient in bf16, a log-sum-exp; then gradients in float32, before they are cast,
    four tiles of 256 x 512 scores (of 128, where several rows make them large enough). A fused kernel needs neither:
    three gradients in bf16, one of them turned round when the log-sum-exp is gone."""
    n, tile = 2048, 4 * rows * 4 * {1: 256, 3: 128}[rows] * 512 * 4
    one, lse = rows * n * 4 * 16 * 2, rows * n * 4 * 4
    assert attended("blocked", "cpu", n, rows) == (4 * one + lse, 5 * one + lse + 3 * 2 * one + tile)
    assert attended("flex", "cuda", n, rows) == (4 * one + lse, 9 * one)


def test_which_kernel_runs() -> None:
    """A window is no plain causal mask: fused attention hands it to `blocked`, which keeps scores up to 1,024 keys."""
    assert attended("sdpa", "cuda", 2048) == attended("blocked", "cuda", 2048)
    assert attended("sdpa", "cuda", 512) == attended("blocked", "cuda", 512) != attended("eager", "cuda", 512)
    assert attended("auto", "cuda", 2048) == attended("flex", "cuda", 2048)
    assert attended("auto", "cpu", 2048) == attended("blocked", "cpu", 2048)
    assert attended("eager", "cpu", 2048)[1] > 3 * attended("blocked", "cpu", 4096)[1]


def test_what_flex_cannot_look_up_goes_to_blocked() -> None:
    words = (*TINY, "position=shaw", "model.n_layers=1", "train.micro_batch_size=1", "train.seq_len=2048")
    auto, blocked = (planned(*words, f"engine.attention={name}", device="cuda") for name in ("auto", "blocked"))
    assert auto == blocked


def test_activations_and_tables_grow_with_the_micro_batch() -> None:
    one, two = (planned(*TINY, "position=rope", f"train.micro_batch_size={n}") for n in (4, 8))
    assert two.kept / one.kept == pytest.approx(2, rel=0.05)
    assert one.tables - 3 * 4 * 64 * 8 == 2 * 4 * 64 * 32 * 4  # cos and sin; tokens, targets and positions


@pytest.mark.parametrize(
    ("scheme", "device"),
    [("rope", "cpu"), ("rope", "cuda"), ("t5", "cuda"), ("fire", "cpu"), ("fox", "cpu"), ("linear_rope", "cuda")],
)
def test_long_attention_is_linear_in_memory(scheme: str, device: str) -> None:
    words = (*TINY, f"position={scheme}", "model.n_layers=2", "train.micro_batch_size=1", "engine.dtype=bf16")
    short, long = (planned(*words, f"train.seq_len={n}", device=device) for n in (2048, 4096))
    assert long.kept / short.kept == pytest.approx(2, rel=0.08)


def test_a_frozen_head_makes_no_gradient_of_itself_in_the_loss() -> None:
    words = (*SMALL, "position=rope", "model.vocab_size=32000")
    all_of_it = planned(*words, trainable=("blocks.*", "head.weight"))
    frozen = planned(*words, trainable=("blocks.*",))
    assert all_of_it.kept - frozen.kept == 32000 * 256 * 2  # bf16
