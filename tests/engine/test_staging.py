"""Batches copied ahead: in order, one step and no more, and nothing is changed by it."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coca_train.config.schema import CurriculumConfig
from coca_train.data.loader import Loader
from coca_train.engine import process
from coca_train.runtime.staging import Staging, to_device
from tests.engine.scenarios import batches, build, lr_of
from tests.faults.fork_server import ForkServer, values

CPU = torch.device("cpu")
RUN = f"{__name__}:losses"


class Watched:
    """A lane that writes down what is copied and what arrives, by the first token of a step."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def copy(self, tensor: Tensor) -> tuple[Tensor, Any]:
        self.events.append(("copied", int(tensor[0, 0])))
        return tensor.clone(), int(tensor[0, 0])

    def arrive(self, copied: Tensor, ready: Any) -> None:
        self.events.append(("arrived", ready))


class Steps:
    """As much of a mixture as a loader asks for: step n is full of n."""

    global_batch_size, seq_len = None, 4
    config = SimpleNamespace(curriculum=CurriculumConfig())

    def max_samples(self) -> int:
        return 5

    def places(self, first: int, n_samples: int) -> list[int]:
        return [first]

    def batch(self, places: list[int]) -> Any:
        from tests.engine.scenarios import Batch

        full = torch.full((1, 4), places[0])
        return Batch(full, full.clone(), full.clone())


@pytest.fixture
def loader() -> Iterator[tuple[Loader, Watched]]:
    lane = Watched()
    with Loader(Steps(), 1, 1, 0, 1, 0, 2, staging=Staging(lane)) as reading:  # pyright: ignore[reportArgumentType]
        yield reading, lane


def test_the_next_step_is_copied_before_this_one_computes(loader: tuple[Loader, Watched]) -> None:
    reading, lane = loader
    seen = []
    for _ in range(5):
        while reading._queue.empty() and len(seen) < 4:  # on a busy machine: what is not read yet is not copied ahead
            time.sleep(0.001)
        (batch,) = next(reading)
        lane.events.append(("computes", int(batch.tokens_BT[0, 0])))
        seen.append([to_device(x, CPU).tolist() for x in (batch.tokens_BT, batch.targets_BT, batch.pos_BT)])
    with pytest.raises(StopIteration):
        next(reading)
    with pytest.raises(StopIteration):
        next(reading)
    assert seen == [[[[step] * 4]] * 3 for step in range(5)]
    for step in range(1, 5):
        copied, before = lane.events.index(("copied", step)), lane.events.index(("computes", step - 1))
        assert copied < before < lane.events.index(("arrived", step))  # begun before the step that hides it
        assert copied > lane.events.index(("computes", step - 2)) if step > 1 else True  # one step ahead, no more
        assert lane.events.count(("copied", step)) == lane.events.count(("arrived", step)) == 3
    assert ("copied", 0) not in lane.events  # nothing runs that could hide it


def test_a_copy_is_handed_out_once() -> None:
    """It belongs to its step: what is asked for again is copied again, and no memory is kept."""
    lane, tensor = Watched(), torch.ones(1, 1)
    Staging(lane).ahead(tensor)
    first, second = to_device(tensor, CPU), to_device(tensor, CPU)
    assert first is not tensor and second is tensor
    Staging.to(CPU).ahead(tensor)  # on a CPU nothing is copied
    assert to_device(tensor, CPU) is tensor


def losses(ahead: bool) -> list[float]:
    """In a forked rank: of an engine whose batches were copied ahead, or not."""
    built, staging = build(kind="local"), Staging(Watched() if ahead else None)
    seen = []
    for step in range(4):
        micro_batches = batches(step, 2)
        for batch in micro_batches:
            for tensor in (batch.tokens_BT, batch.targets_BT, batch.pos_BT, batch.doc_BT):
                staging.ahead(tensor)
        seen.append(built.train_step(micro_batches, lr_of(step)).loss)
    built.close()
    return seen


def test_training_is_the_same(server: ForkServer) -> None:
    ahead, plain = (values(server.run(RUN, {"ahead": each}))[0] for each in (True, False))
    assert ahead == plain


def test_what_torch_and_nccl_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has told them nothing; nothing on a CPU."""
    names = [*process.CUDA_DEFAULTS, *process.DETERMINISTIC, "PYTORCH_ALLOC_CONF"]

    def told(device: str, deterministic: bool, **own: str) -> dict[str, str]:
        environment = {key: value for key, value in own.items()}
        monkeypatch.setattr(process.os, "environ", environment)
        process.prepare(torch.device(device), deterministic)
        return {name: environment[name] for name in names if name in environment}

    try:
        assert told("cpu", True) == {}
        assert told("cuda", False) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_DEBUG": "WARN"}
        assert told("cuda", True) == process.CUDA_DEFAULTS | process.DETERMINISTIC
        assert torch.are_deterministic_algorithms_enabled()
        own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Tree"}
        assert told("cuda", True, **own) == own | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        newer = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
        assert told("cuda", False, **newer) == newer | {"NCCL_DEBUG": "WARN"}
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_deterministic_run_trains(server: ForkServer) -> None:
    """On a CPU its numbers are those of any run, and no operation is refused."""
    job = {"steps": 3, "zero_stage": 3, "dtype": "bf16"}
    exact, plain = (
        values(server.run("tests.engine.scenarios:train", job | {"deterministic": each}, ranks=2))[0]
        for each in (True, False)
    )
    assert (exact["losses"], exact["digest"]) == (plain["losses"], plain["digest"])
