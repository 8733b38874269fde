"""Memory in all: what is added up, when it is there, and the smallest change that fits."""

from dataclasses import replace
from functools import cache

import pytest

from coca_train.planning.engines import States
from coca_train.planning.memory import CUDA, Activations, GpuMemory, gpu_memory, watch_activations
from tests.planning.conftest import TINY, outlined

N_LAYERS = 2
WORDS = (*TINY, f"model.n_layers={N_LAYERS}", "position=rope", "train.micro_batch_size=4")


@cache
def planned(*words: str, n_gpus: int = 1, device: str = "cpu", trainable: tuple[str, ...] = ("*",)) -> GpuMemory:
    return gpu_memory(outlined(*WORDS, *words, trainable=trainable), n_gpus, device)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("batch", [4, 8])
def test_rows_add_up_to_what_a_step_needs(dtype: str, batch: int) -> None:
    plan = planned(f"engine.dtype={dtype}", f"train.global_batch_size={batch}")
    assert sum(plan.rows.values()) == pytest.approx(plan.training)
    assert min(plan.rows.values()) >= 0
    assert plan.training == max(plan.phases["forward and backward"], plan.phases["optimizer step"])


STATES = States(
    weights=10**10, masters=2 * 10**9, moments=3 * 10**9, own_gradients=400, summed_gradients=5 * 10**7,
    buckets=6 * 10**6, between=7 * 10**5, gathered=8 * 10**4, arriving=3 * 10**4, afterwards=9000, starting=10**9,
)  # fmt: skip
SEEN = Activations(tables=10, kept=200, peak=1010, reading=6)
LASTING = 15 * 10**9 + 3 + 40  # with what is remembered of the text before, and the device's own
TRAINING = LASTING + 5 * 10**7 + 6 * 10**6 + 8 * 10**4


def test_phases_by_hand() -> None:
    plan = GpuMemory(STATES, SEEN, recurrent=3, report_batches=2.5, of_device=40)
    validation = LASTING + 7 * 10**5 + 11 * 10**4 + 6
    assert plan.phases == {
        "start": LASTING + 7 * 10**5,
        "forward and backward": TRAINING + 1010,
        "optimizer step": TRAINING + 400 + 9000,
        "validation": validation,
    }
    assert (plan.training, plan.total, plan.report) == (TRAINING + 9400, TRAINING + 9400, validation + 9)
    assert replace(plan, report_batches=0).report == 0
    starting = replace(plan, states=replace(STATES, starting=10**12))
    assert starting.phases["start"] == 10**12 + 40


@pytest.mark.parametrize(("peak", "own", "tables", "kept", "working", "copies"), [
    (1010, 400, 0, 0, 0, 9000),  # the optimizer's step needs more: activations are gone
    (90_000, 400, 10, 200, 89_390, 0),
])  # fmt: skip
def test_rows_by_hand(peak: int, own: int, tables: int, kept: int, working: int, copies: int) -> None:
    plan = GpuMemory(STATES, replace(SEEN, peak=peak), recurrent=3, report_batches=0, of_device=40)
    assert plan.rows == {
        "weights": 10**10,
        "master weights": 2 * 10**9,
        "optimizer moments": 3 * 10**9,
        "gradients": 5 * 10**7 + own,
        "ZeRO buckets": 6 * 10**6,
        "ZeRO gathered weights": 8 * 10**4,
        "tables, tokens": 3 + tables,
        "activations kept": kept,
        "logits and working": working,
        "copies after backward": copies,
        "CUDA, NCCL (assumed)": 40,
    }


def test_gradients_that_came_while_others_went() -> None:
    """At the peak only a part of them is there."""
    plan = GpuMemory(replace(STATES, afterwards=0), replace(SEEN, peak=500), 0, 0, 0)
    assert (plan.rows["gradients"], plan.rows["logits and working"]) == (5 * 10**7 + 290, 0)
    assert sum(plan.rows.values()) == plan.training


def test_what_a_stage_trains_and_how_often_decides_what_is_held() -> None:
    keys = planned("train.global_batch_size=4", trainable=("*.k.weight",)).states
    n = N_LAYERS * 256 * 128
    assert (keys.moments, keys.own_gradients, keys.afterwards) == (8 * n, 2 * n, 0)
    assert planned("train.global_batch_size=4", trainable=("*.k.weight", "final_norm.weight")).states.afterwards > 0
    words = ("engine=local", "engine.dtype=bf16")
    once, twice = (planned(*words, f"train.global_batch_size={rows}").states for rows in (4, 8))
    assert (once.summed_gradients, twice.summed_gradients) == (0, 4 * outlined(*WORDS).n_parameters)
    sharded = planned("engine.zero_stage=2", "train.global_batch_size=32", n_gpus=8).states
    assert sharded.masters == 4 * outlined(*WORDS).n_parameters // 8


def test_muon_and_checkpointing_need_less() -> None:
    """One moment for the matrices of two blocks: q, out 256 x 256, k, v 128 x 256, three of 704 x 256."""
    words = ("engine=local", "train.global_batch_size=4")
    adam, muon = planned(*words), planned(*words, "optim=muon")
    assert adam.states.moments - muon.states.moments == 4 * N_LAYERS * (2 * 256**2 + 2 * 128 * 256 + 3 * 704 * 256)
    ways = [planned(*words, f"engine.activation_checkpointing={way}") for way in ("none", "selective", "full")]
    assert ways[2].activations.kept < ways[1].activations.kept < ways[0].activations.kept
    assert ways[2].activations.kept < ways[0].activations.kept / 3


def test_gradients_taken_to_the_masters_do_not_stay() -> None:
    """The local engine in bf16 moves each micro batch's gradients to float32 sums: not there in the next forward."""
    words = ("engine=local", "engine.dtype=bf16")
    once, twice = (planned(*words, f"train.global_batch_size={rows}") for rows in (4, 8))
    assert once.activations == twice.activations


def test_the_report_reads_more_at_once_than_a_step() -> None:
    """16 windows of 64 tokens, or 5,120 tokens if that is more; a micro batch has 4 x 64."""
    words = ("eval.extrapolation.multiples=[1,16]", "eval.extrapolation.micro_batch_tokens={}")
    for tokens, batches in ((100, 4), (5120, 20)):
        assert planned(words[0], words[1].format(tokens)).report_batches == batches
    plan = planned("eval.extrapolation.enabled=false")
    assert (plan.report_batches, plan.report) == (0, 0)


def test_local_float32_by_hand() -> None:
    """16 bytes a parameter and the activations; the gradients come while these go."""
    plan = planned("engine=local", "train.global_batch_size=4")
    outline = outlined(*WORDS, "engine=local", "train.global_batch_size=4")
    seen = watch_activations(outline, 4, "cpu", checkpointing="none", keeps_gradients=True)
    assert plan.phases["forward and backward"] == 12 * outline.n_parameters + seen.peak
    assert plan.phases["optimizer step"] == 16 * outline.n_parameters


def test_accumulated_gradients_are_there_from_the_start() -> None:
    once, twice = (planned("engine=local", f"train.global_batch_size={n}") for n in (4, 8))
    n_bytes = 4 * outlined(*WORDS).n_parameters
    assert 0 < twice.training - once.training <= n_bytes
    outline = outlined(*WORDS, "engine=local")
    released = watch_activations(outline, 4, "cpu", checkpointing="none", keeps_gradients=False)
    assert twice.activations.peak == released.peak + n_bytes


def test_a_gpu_takes_some_for_itself() -> None:
    on_cpu, on_gpu = (planned("train.global_batch_size=4", device=device) for device in ("cpu", "cuda"))
    assert on_gpu.rows["CUDA, NCCL (assumed)"] == CUDA
    assert on_cpu.rows["CUDA, NCCL (assumed)"] == 0


@pytest.mark.parametrize("words", [(), ("engine.mlp_tile=16",)])
def test_a_slice_keeps_a_share_and_sends_what_it_does_not(words: tuple[str, ...]) -> None:
    """Of everything by token; tables are those of the whole row on every rank."""
    common = ("position=coca", "train.seq_len=256", "train.micro_batch_size=1", "train.global_batch_size=8", *words)
    whole, shared = (planned(*common, f"engine.sequence_parallel={n}", n_gpus=8) for n in (1, 4))
    assert whole.activations.kept / 4 < shared.activations.kept < whole.activations.kept / 3.2
    assert shared.activations.reading < whole.activations.reading / 3
    assert shared.states == replace(whole, states=shared.states).states


def test_a_tiled_feed_forward_keeps_no_inner_activations() -> None:
    whole, tiled = (planned("train.seq_len=256", f"engine.mlp_tile={tile}") for tile in ("null", 32))
    assert tiled.activations.kept < 0.7 * whole.activations.kept


def test_a_memory_of_the_text_before_is_held_for_all_rows() -> None:
    words = ("position=transformer_xl", "position.memory_len=32", "data.order=stream", "train.global_batch_size=8")
    assert planned(*words).recurrent == 8 * N_LAYERS * 32 * 256 * 2
    assert planned(*words, n_gpus=2).recurrent == 4 * N_LAYERS * 32 * 256 * 2
    assert planned("position=rope").recurrent == 0
    assert planned(*words, "engine.dtype=fp32").recurrent == 8 * N_LAYERS * 32 * 256 * 4
