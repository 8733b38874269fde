"""The roofline page: rates, times by hand, what is told; and the budgets that a training step is held to."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from coca_train.planning.as_text import roofline_lines
from coca_train.planning.cost import PARTS, Step, count_step
from coca_train.planning.count import BACKWARD, FORWARD, FUSED_ATTENTION, LOSS, Count, Operation
from coca_train.planning.engines import Collective, ParameterCounts, collectives, engine_update
from coca_train.planning.hardware import (
    A100,
    AGAIN_S,
    BOOKS,
    GPUS,
    H100,
    ON_PAGE,
    OPERATION_S,
    PUBLISHED,
    RATES,
    host_seconds,
    rates_of,
)
from coca_train.planning.meta_step import count_flops, count_micro_batch
from coca_train.stages import resolve
from coca_train.testing.parts import shipped
from tests.cases import slow_unless
from tests.planning.conftest import TINY, configure, outlined

BF16 = outlined(*TINY, "position=rope").dtype
SMALL = (*TINY, "model.n_layers=2", "position=rope")
FIRST_COUNT = 355e9  # bytes of a micro batch of 16 x 512 of coca_350m, as it was first counted


@cache
def counted(*words: str, n_gpus: int = 1) -> Step:
    outline = outlined(*words)
    return count_step(outline, count_flops(outline), n_gpus, "cuda")


def kernel(nbytes: float = 0, n_flops: float = 0, attention: bool = False, phase: str = FORWARD) -> Operation:
    name, tensors = FUSED_ATTENTION if attention else "mm", ((torch.Size(), BF16),)
    return Operation(LOSS, None, phase, name, tensors, tensors, (int(nbytes),), (), n_flops)


def test_a_kernel_takes_the_longer_of_moving_and_computing() -> None:
    assert A100.seconds(kernel(1.75e9)) == pytest.approx(1e-3)
    assert A100.seconds(kernel(1.75e9, 312e9 * 0.78 * 2)) == pytest.approx(2e-3)
    assert H100.seconds(kernel(0, 989.4e9 * 0.58, attention=True)) == pytest.approx(1e-3)
    assert H100.seconds(kernel(2.9e9 * 0.55)) == pytest.approx(1e-3)
    assert H100.seconds(kernel(2.9e9, 1)) == pytest.approx(1e-3)
    assert A100.seconds(kernel(8)) == 2.5e-6


def test_the_h200_has_the_h100s_chip_and_its_own_memory() -> None:
    h200 = RATES["h200"]
    assert h200.bandwidth == pytest.approx(2.9e12 / 3.35e12 * 4.8e12)
    assert (h200.products, h200.attention) == (H100.products, H100.attention)
    assert [rates_of(GPUS[name]) for name in ("a100_80gb", "h100", "t4")] == [A100, H100, None]


def test_rows_add_up_to_the_step() -> None:
    one = counted(*SMALL, "train.global_batch_size=16", "train.micro_batch_size=4", n_gpus=2)
    rows = one.rows([A100])
    assert one.n_micro_batches == 2 and one.n_tokens == 8 * 64
    assert rows[LOSS].nbytes == 2 * sum(each.nbytes for each in one.kernels if each.part == LOSS)
    assert one.device_seconds(A100) == pytest.approx(sum(row.seconds[0] for row in rows.values()))
    mfu = one.per_token.total * one.n_tokens / one.seconds(A100) / 312e12
    assert one.mfu(A100, one.seconds(A100)) == pytest.approx(mfu)


@pytest.mark.parametrize(("checkpointing", "calls"), slow_unless([("full", 6)], [("none", 4), ("full", 6)]))
def test_gpus_that_share_sequences_exchange_tokens_for_heads(checkpointing: str, calls: int) -> None:
    words = (*SMALL, "train.global_batch_size=16", "train.micro_batch_size=4")
    words = (*words, f"engine.activation_checkpointing={checkpointing}")
    alone, shared = (counted(*words, f"engine.sequence_parallel={n}", n_gpus=4) for n in (1, 2))
    assert (alone.n_micro_batches, shared.n_micro_batches) == (1, 2)
    assert shared.n_tokens == alone.n_tokens
    # A GPU computes as much: half of the tokens, and inside attention half of the heads, twice as often.
    parts = alone.rows([A100]).keys() - {"communication"}
    for part in parts - {"optimizer"}:
        assert shared.rows([A100])[part].flops == pytest.approx(alone.rows([A100])[part].flops), part
    (sent,) = [each for each in shared.collectives if each.name == "all-to-all"]
    model = shared.outline.config.model
    # Queries, half as many keys and values one way, what attention gives the other; the same in backward, and where it
    # is computed again.
    of_slice = 4 * 32 * model.d_model * shared.outline.dtype.itemsize
    assert model.n_kv_heads == model.n_heads / 2
    assert sent.times == 2 * model.n_layers * calls
    assert sent.nbytes == 2 * model.n_layers * calls / 2 * 3 * of_slice
    assert sent.sent(4) == sent.nbytes / 2
    assert not any(each.name == "all-to-all" for each in alone.collectives)
    waited = replace(shared, collectives=(sent,)).rows([A100])["communication"].seconds[0]
    assert waited == pytest.approx(sent.nbytes / 2 / A100.link(2))
    assert any("all-to-all" in line and " 2," in line for line in roofline_lines(shared, [A100]))


def test_what_is_sent() -> None:
    """Ring algorithm; bytes a parameter of every ZeRO stage on 8 GPUs, two micro batches."""

    def sent(words: tuple[str, ...], trained: int = 10, n_all: int = 10) -> list[tuple[str, int, int, bool]]:
        found = collectives(configure(*words).engine, ParameterCounts(n_all, trained, 0), 8, 2)
        return [(each.name, each.per_parameter, each.times, each.overlapped) for each in found]

    stage = {n: ("engine.dtype=bf16", f"engine.zero_stage={n}") for n in (1, 2, 3)}
    assert sent(("engine.dtype=fp32", "engine.zero_stage=0")) == [("all-reduce", 4, 1, False)]
    assert sent(stage[1]) == [("all-reduce", 4, 1, False), ("all-gather", 2, 1, False)]
    assert sent(stage[2]) == [("all-reduce", 4, 2, True), ("all-gather", 2, 1, False)]
    assert sent((*stage[2], "engine.overlap_communication=false"))[0] == ("all-reduce", 4, 2, False)
    assert sent(stage[3]) == [("all-gather", 2, 2, True), ("reduce-scatter", 4, 2, True)]
    assert sent((*stage[3], "engine.overlap_communication=false"))[1] == ("reduce-scatter", 4, 2, False)
    assert sent(stage[3], n_all=2 * 10**9)[0] == ("all-gather", 2, 4, True)
    assert sent(("engine=local",)) == []
    owner, narrow = "engine.gradient_reduction=owner", "engine.communication_dtype=bf16"
    assert sent((*stage[1], owner))[0] == ("all-reduce", 4, 1, False)  # DeepSpeed has no owners there
    assert sent(("engine.dtype=fp32", "engine.zero_stage=1", owner))[0] == ("reduce", 4, 1, False)
    assert sent((*stage[2], owner))[0] == ("reduce", 4, 2, True)
    assert sent((*stage[2], owner, narrow))[0] == ("reduce", 2, 2, True)
    assert sent((*stage[3], narrow))[1] == ("reduce-scatter", 2, 2, True)
    assert sent(("engine.dtype=fp16", "engine.zero_stage=2"))[0] == ("all-reduce", 2, 2, True)
    assert Collective("all-reduce", "", 4, 1, 800.0, False).sent(8) == 2 * 700
    assert Collective("all-gather", "", 4, 1, 800.0, False).sent(8) == 700
    # A parameter, micro batch by micro batch: 7.0 B to all, 3.5 B to its owner (docs/operations.md).
    assert Collective("all-reduce", "", 4, 1, 4.0, True).sent(8) == 7.0
    assert Collective("reduce", "", 4, 1, 4.0, True).sent(8) == 3.5
    assert engine_update(configure(*stage[1]).engine).nbytes(100, 8, 2) == pytest.approx(100 * (33.3 + 36 + 55.3 / 8))


def test_the_products_of_muon_are_counted() -> None:
    """Two blocks: q 256 x 256, k and v 128 x 256, out 256 x 256, three of 704 x 256; each is one GPU's where ZeRO cuts
    them."""
    square, narrow, wide = 6 * 256**3, 4 * 128**2 * 256 + 2 * 128**3, 4 * 256**2 * 704 + 2 * 256**3
    by_hand = 5 * 2 * (2 * square + 2 * narrow + 3 * wide)
    words = (*SMALL, "train.global_batch_size=32", "train.micro_batch_size=4")
    assert counted(*words, n_gpus=2).rows([A100])["optimizer"].flops == 0
    for zero, n_gpus in ((1, 2), (2, 4)):
        cut = counted(*words, "optim=muon", f"engine.zero_stage={zero}", n_gpus=n_gpus).rows([A100])["optimizer"]
        assert cut.flops == by_hand / n_gpus
    assert counted(*words, "optim=muon", "engine=local").rows([A100])["optimizer"].flops == by_hand


def test_gradients_hide_behind_the_backward_pass_alone() -> None:
    """Forward 1 ms, backward 2 ms; sending takes 2.5 ms of either."""
    one = counted(*SMALL, "train.global_batch_size=16", "train.micro_batch_size=4", n_gpus=4)
    kernels = tuple(kernel(ms * 1e-3 * 1.75e9 * 1e3, phase=phase) for phase, ms in ((FORWARD, 1), (BACKWARD, 2)))
    for what, seconds in (("gradients", 0.5e-3), ("weights", 0.0)):
        sent = (Collective("all-gather", what, 2, 1, 2.5e-3 * A100.link(4) * 4 / 3, True),)
        row = replace(one, kernels=kernels, collectives=sent).rows([A100])["communication"]
        assert row.seconds[0] == pytest.approx(seconds, abs=1e-9)


def test_what_is_overlapped_costs_only_what_is_longer() -> None:
    words = (*SMALL, "engine.zero_stage=3", "train.global_batch_size=64", "train.micro_batch_size=4")
    hidden = counted(*words, n_gpus=16).rows([A100])["communication"].seconds[0]
    plain = counted(*words[:-3], "engine.zero_stage=2", *words[-2:], n_gpus=16).rows([A100])["communication"].seconds[0]
    assert hidden < plain


def test_the_page() -> None:
    one = counted(*SMALL, "train.global_batch_size=16", "train.micro_batch_size=4", n_gpus=2)
    lines = roofline_lines(one, ON_PAGE)
    assert all(len(line) <= 120 for line in lines)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "2 GPUs" in text and "2 micro batches of 4 x 64" in text
    assert "part kernels GB TFLOP A100 [ms] H100 [ms] H200 [ms]" in text
    rows = {line.split("  ")[0]: line.split() for line in (each.strip() for each in lines)}
    assert {"device", "host", "MFU"} <= rows.keys()
    assert "A100 1.75 TB/s" in text and "products 78 %" in text and "attention 60 %" in text
    assert "all-reduce of gradients, 4 B" in text


def test_a_step_is_the_longer_of_device_and_host():
    """A narrow model is launched more slowly than an H100 computes it, and a GPU that is a thousand times slower waits
    for nothing."""
    narrow = ("model.n_layers=2", "model.d_model=64", "model.n_heads=4", "model.d_ff=96", "train.seq_len=16")
    one = counted("+experiment=coca_350m", *narrow)
    assert one.device_seconds(H100) < one.host_seconds == one.seconds(H100)
    slow = replace(H100, bandwidth=H100.bandwidth / 1e6)
    assert one.host_seconds < one.device_seconds(slow) == one.seconds(slow)
    lines = [line for line in roofline_lines(one, [H100]) if line.startswith("    ")]
    rows = {line.split("  ")[2].strip(): line.split()[-1] for line in lines}
    assert rows["host"] == rows["a step"] != rows["device"]


def test_the_hosts_seconds_by_hand():
    engine = configure(*SMALL, "engine=local").engine
    counts = {"operations": 1000, "again": 0, "trained": 100, "tensors": 200, "micro_batches": 3}
    by_hand = 3 * 1000 * OPERATION_S + 100 * BOOKS["local", 0].update
    assert host_seconds(engine, **counts) == pytest.approx(by_hand)
    zero, gathered = replace(engine, kind="deepspeed", zero_stage=3), 200 * BOOKS["deepspeed", 3].gather
    by_hand = 3 * (1000 * OPERATION_S + 2 * gathered) + 100 * BOOKS["deepspeed", 3].update
    assert host_seconds(zero, **counts) == pytest.approx(by_hand)
    full = replace(zero, activation_checkpointing="full")
    assert host_seconds(full, **counts | {"again": 50}) == pytest.approx(by_hand + 3 * (50 * AGAIN_S + gathered))


def test_what_nobody_has_reached_is_said():
    words = ("model.n_layers=1", "engine.compile=blocks", "train.global_batch_size=256")
    one = counted("+experiment=coca_350m", *words, n_gpus=8)
    assert "compiled blocks" in " ".join(roofline_lines(one, [H100]))
    faster = replace(H100, bandwidth=100 * H100.bandwidth, products=0.99, attention=0.99)
    notes = " ".join(roofline_lines(one, [faster]))
    assert "published" in notes and f"{PUBLISHED['h100'][0]:.0%}".rstrip("%") in notes
    assert "published" not in " ".join(roofline_lines(one, [replace(faster, products=0.2, attention=0.1)]))


# ---- budgets


@cache
def of_350m() -> Count:
    """A micro batch of coca_350m, 16 x 512."""
    words = ("+experiment=coca_350m", "train.micro_batch_size=16")
    (stage,) = resolve(configure(*words))
    return count_micro_batch(outlined(*words, trainable=stage.trainable), "cuda")


def test_the_budgets_of_350m() -> None:
    """20.6 TFLOP: 4.95 + 9.90 of layers, 5.08 of the loss, 0.73 of attention. The loss moves at most a quarter."""
    operations = of_350m().operations
    total, of_loss = (sum(each.nbytes for each in operations if each.part in parts) for parts in (PARTS, [LOSS]))
    assert sum(each.flops for each in operations) == pytest.approx(20.64e12, rel=1e-3)
    assert total - of_loss <= 90e9 and of_loss <= 0.25 * total and total <= 0.45 * FIRST_COUNT
    assert len(operations) <= 1500


def waits(scheme: str, *words: str, with_documents: bool = False) -> dict[str, int]:
    words = ("model.n_layers=2", "train.micro_batch_size=2", "data.order=stream", f"position={scheme}", *words)
    outline = outlined(*TINY, *words)
    return dict(count_micro_batch(outline, "cuda", with_documents=with_documents).syncs)


SCHEMES = sorted(name for name, _ in shipped())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_host_never_waits_in_forward_and_backward(scheme: str) -> None:
    """Nor sends anything: no `item`, no `nonzero`, no tensor made on the host. With and without documents."""
    assert waits(scheme) == {}
    if scheme != "transformer_xl":  # its memory is of the documents before
        assert waits(scheme, "data.document_mask=true", with_documents=True) == {}


@pytest.mark.parametrize("scheme", slow_unless(["cope"], ["cope", "shaw"]))
def test_nor_where_attention_works_tile_by_tile(scheme: str) -> None:
    assert waits(scheme, "train.seq_len=1088") == {}
