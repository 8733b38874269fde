"""Memory in all: what is added up, when it is there, and the smallest change that fits."""

from dataclasses import replace
from typing import Any

import pytest

from coca_train.planning.fit import Change, smallest_change
from coca_train.planning.memory import CUDA, Memory, memory
from coca_train.planning.step import activations
from tests.planning.conftest import TINY, configure, outlined

WORDS = (*TINY, "position=rope", "train.micro_batch_size=4")


def planned(*words: str, n_gpus: int = 1, device: str = "cpu", trainable: tuple[str, ...] = ("*",)) -> Memory:
    return memory(outlined(*WORDS, *words, trainable=trainable), n_gpus, device)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("batch", [4, 8])
def test_rows_add_up_to_what_a_step_needs(dtype: str, batch: int) -> None:
    found = planned(f"engine.dtype={dtype}", f"train.global_batch_size={batch}")
    assert sum(found.rows.values()) == pytest.approx(found.training)
    assert min(found.rows.values()) >= 0
    assert found.training == max(found.phases["forward and backward"], found.phases["optimizer step"])


def test_local_float32_by_hand() -> None:
    """16 bytes a parameter and the activations; the gradients come while these go."""
    found = planned("engine=local", "train.global_batch_size=4")
    outline = outlined(*WORDS, "engine=local", "train.global_batch_size=4")
    seen = activations(outline, 4, "cpu", checkpointing=False, keeps_gradients=True)
    assert found.phases["forward and backward"] == 12 * outline.n_parameters + seen.peak
    assert found.phases["optimizer step"] == 16 * outline.n_parameters


def test_accumulated_gradients_are_there_from_the_start() -> None:
    once, twice = (planned("engine=local", f"train.global_batch_size={n}") for n in (4, 8))
    n_bytes = 4 * outlined(*WORDS).n_parameters
    assert 0 < twice.training - once.training <= n_bytes
    released = activations(outlined(*WORDS, "engine=local"), 4, "cpu", checkpointing=False, keeps_gradients=False)
    assert twice.activations.peak == released.peak + n_bytes


def test_a_gpu_takes_some_for_itself() -> None:
    on_cpu, on_gpu = (planned("train.global_batch_size=4", device=device) for device in ("cpu", "cuda"))
    assert on_gpu.rows["CUDA, NCCL (assumed)"] == CUDA
    assert on_cpu.rows["CUDA, NCCL (assumed)"] == 0


def test_checkpointing_keeps_less() -> None:
    without, with_it = (planned(f"engine.activation_checkpointing={on}") for on in ("false", "true"))
    assert with_it.activations.kept < without.activations.kept / 3


def test_more_gpus_and_zero_3_need_less_and_validate_whole() -> None:
    words = ("engine.bucket_size=1000", "train.global_batch_size=32")
    one, eight = (planned(*words, "engine.zero_stage=2", n_gpus=n) for n in (1, 8))
    assert eight.training < one.training
    sharded = planned(*words, "engine.zero_stage=3", n_gpus=8)
    assert sharded.phases["validation"] > 2 * outlined(*WORDS).n_parameters


def test_a_memory_of_the_text_before_is_held_for_all_rows() -> None:
    words = ("position=transformer_xl", "position.memory_len=32", "data.order=stream", "train.global_batch_size=8")
    assert planned(*words).recurrent == 8 * 6 * 32 * 256 * 2
    assert planned(*words, n_gpus=2).recurrent == 4 * 6 * 32 * 256 * 2
    assert planned("position=rope").recurrent == 0


# ---- the smallest change

CONFIG = configure(*WORDS, "train.micro_batch_size=8", "train.global_batch_size=64")


def change(fits: Any, **engine: Any) -> Change | None:
    config = replace(CONFIG, engine=replace(CONFIG.engine, **engine))
    return smallest_change(config, 4, fits)


def test_a_smaller_micro_batch_comes_first_and_no_smaller_than_needed() -> None:
    assert change(lambda c, n: c.train.micro_batch_size <= 4) == Change(micro_batch_size=4)
    assert change(lambda c, n: c.train.micro_batch_size <= 3) == Change(micro_batch_size=2)  # 3 does not divide 16


def test_then_checkpointing_then_zero_then_gpus() -> None:
    assert change(lambda c, n: c.engine.activation_checkpointing) == Change(activation_checkpointing=True)
    assert change(lambda c, n: c.engine.zero_stage >= 2) == Change(zero_stage=2)
    assert change(lambda c, n: n >= 8) == Change(n_gpus=8)
    assert change(lambda c, n: n >= 16) == Change(n_gpus=16, micro_batch_size=4)  # 64 rows, 4 each: 8 is too many


def test_two_changes_where_one_does_not_do() -> None:
    found = change(lambda c, n: c.engine.activation_checkpointing and c.train.micro_batch_size == 2)
    assert found == Change(micro_batch_size=2, activation_checkpointing=True)
    assert found and found.typed() == "train.micro_batch_size=2 engine.activation_checkpointing=true"
    found = change(lambda c, n: n == 8 and c.engine.zero_stage == 3)
    assert found and found.typed() == "engine.zero_stage=3 gpus=8"


def test_what_is_set_already_is_no_change_and_nothing_may_do() -> None:
    assert change(lambda c, n: False) is None
    assert change(lambda c, n: c.engine.zero_stage > 3) is None
    asked: list[int] = []

    def refuse(config: Any, n: int) -> bool:
        asked.append(n)
        assert config.train.global_batch_size == 64 and 64 % (n * config.train.micro_batch_size) == 0
        return False

    assert change(refuse, kind="local") is None
    assert set(asked) == {4}  # one process, no ZeRO
