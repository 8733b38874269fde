"""The memory between steps, with an engine that only records: rows, wraps, skipped steps, what a checkpoint holds."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from coca_train.engine.base import Slice, StepResult
from coca_train.engine.recurrence import RecurrentEngine, SegmentMemorySize
from coca_train.models.memory import Memory
from tests.states import full_state

ROWS, LAYERS, M, C, T = 4, 2, 6, 3, 4


@dataclass(frozen=True)
class Batch:
    tokens_BT: Tensor
    continues_B: Tensor | None
    targets_BT: Any = None
    pos_BT: Any = None
    doc_BT: Any = None
    memory: Memory | None = None
    length: None = None


class Recorder:
    """An engine whose "model" leaves step + token as every hidden value of layer 0, and 1000 more in layer 1."""

    model, device, dtype, zero_stage, trainable, skipped_steps = None, torch.device("cpu"), "fp32", 0, ["w"], 0

    def __init__(self) -> None:
        self.seen: list[Memory] = []
        self.skip = False
        self.weight = torch.zeros(2)

    def train_step(self, micro_batches: Any, lr: float) -> StepResult:
        for batch in micro_batches:
            self.seen.append(Memory([x.clone() for x in batch.memory.hidden], batch.memory.length_B.clone()))
            for layer in range(LAYERS):
                batch.memory.exchange((batch.tokens_BT + 1000.0 * layer)[..., None].expand(-1, -1, C))
        self.skipped_steps += self.skip
        return StepResult(loss=1.0, grad_norm=1.0, skipped=self.skip, tokens=1)

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        return {"model/w": (2,)}

    def slices(self) -> list[Slice]:
        return [Slice("model/w", 0, self.weight)]

    def load_state(self, read: Any, counters: Any) -> None:
        self.weight = read("model/w", 0, 2)


def build() -> tuple[Recorder, RecurrentEngine]:
    inner = Recorder()
    engine = RecurrentEngine(cast(Any, inner), ROWS, SegmentMemorySize(LAYERS, M, C))
    return inner, engine


def tokens(row: int, step: int) -> Tensor:
    """Row r reads 100 r + 0, 1, 2, …"""
    return 100.0 * row + step * T + torch.arange(T)


def step(engine: RecurrentEngine, number: int, continues: list[bool], micro: int = 2) -> None:
    batches = [
        Batch(torch.stack([tokens(row, number) for row in rows]), torch.tensor([continues[row] for row in rows]))
        for rows in torch.arange(ROWS).split(micro)
    ]
    engine.train_step(cast(Any, batches), 0.1)


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_each_row_gets_its_own_past(micro: int) -> None:
    inner, engine = build()
    step(engine, 0, [False] * ROWS, micro)
    assert not any(memory.valid_BM.any() for memory in inner.seen)
    inner.seen.clear()
    step(engine, 1, [True] * ROWS, micro)
    hidden = torch.cat([torch.stack(memory.hidden, 1) for memory in inner.seen])
    valid = torch.cat([memory.valid_BM for memory in inner.seen])
    assert valid.tolist() == [[False] * 2 + [True] * T] * ROWS
    for row in range(ROWS):
        assert torch.equal(hidden[row, 0, -T:, 0], tokens(row, 0))
        assert torch.equal(hidden[row, 1, -T:, 2], tokens(row, 0) + 1000)
    inner.seen.clear()
    step(engine, 2, [True] * ROWS, micro)  # the memory is longer than a segment: half of step 0 is still in it
    hidden = torch.cat([torch.stack(memory.hidden, 1) for memory in inner.seen])
    assert torch.cat([memory.length_B for memory in inner.seen]).tolist() == [M] * ROWS
    for row in range(ROWS):
        assert torch.equal(hidden[row, 0, :, 0], torch.cat([tokens(row, 0), tokens(row, 1)])[-M:])


def test_a_row_that_begins_anew_has_no_past() -> None:
    inner, engine = build()
    step(engine, 0, [False] * ROWS)
    step(engine, 1, [True] * ROWS)
    inner.seen.clear()
    step(engine, 2, [True, False, True, True])
    assert torch.cat([memory.length_B for memory in inner.seen]).tolist() == [M, 0, M, M]
    inner.seen.clear()
    step(engine, 3, [True] * ROWS)
    assert torch.cat([memory.length_B for memory in inner.seen]).tolist() == [M, T, M, M]


def test_a_skipped_step_leaves_no_memory() -> None:
    inner, engine = build()
    step(engine, 0, [False] * ROWS)
    inner.skip = True
    step(engine, 1, [True] * ROWS)
    assert engine.skipped_steps == 1
    assert not engine.memory.hidden_RLMC.any() and not engine.memory.length_R.any()
    inner.skip = False
    inner.seen.clear()
    step(engine, 2, [True] * ROWS)
    assert not any(memory.length_B.any() for memory in inner.seen)
    assert engine.memory.length_R.tolist() == [T] * ROWS


def test_the_state_is_that_of_the_engine_and_the_memory() -> None:
    _, engine = build()
    for number in range(3):
        step(engine, number, [number > 0] * ROWS)
    spec = engine.state_spec()
    rows = {f"memory/row.{row}": (LAYERS, M, C) for row in range(ROWS)}
    assert spec == {"model/w": (2,), **rows, "memory/lengths": (ROWS,)}
    state = full_state(engine)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == spec
    other, again = build()
    again.load_state(lambda name, start, stop: state[name].flatten()[start:stop], {})
    assert torch.equal(again.memory.hidden_RLMC, engine.memory.hidden_RLMC)
    assert torch.equal(again.memory.length_R, engine.memory.length_R)
    step(engine, 3, [True, False, True, True])
    step(again, 3, [True, False, True, True])
    assert torch.equal(again.memory.hidden_RLMC, engine.memory.hidden_RLMC)
    assert len(other.seen) == 2


def test_low_precision_survives_a_checkpoint_exactly() -> None:
    inner, _ = build()
    inner.dtype = "bf16"
    engine, again = (RecurrentEngine(cast(Any, inner), ROWS, SegmentMemorySize(LAYERS, M, C)) for _ in range(2))
    engine.memory.hidden_RLMC = torch.randn(ROWS, LAYERS, M, C).bfloat16()
    state = full_state(engine)
    again.load_state(lambda name, start, stop: state[name].flatten()[start:stop], {})
    assert again.memory.hidden_RLMC.dtype == torch.bfloat16
    assert torch.equal(again.memory.hidden_RLMC, engine.memory.hidden_RLMC)


def test_a_step_must_have_all_rows_of_the_rank_in_a_stream() -> None:
    _, engine = build()
    with pytest.raises(AssertionError, match="all rows"):
        engine.train_step(cast(Any, [Batch(torch.zeros(2, T), torch.zeros(2, dtype=torch.bool))]), 0.1)
    with pytest.raises(AssertionError, match=r"data\.order=stream"):
        engine.train_step(cast(Any, [Batch(torch.zeros(ROWS, T), None)]), 0.1)
