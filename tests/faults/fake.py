"""An engine that is only a few tensors: what checkpoints are tested with when no training is needed."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.engine import start
from coca_train.engine.base import Keep, ReadTensor
from coca_train.runtime import dist

SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (7, 5), "norm.weight": (5,), "scale": (), "none": (0, 3)}


class FakeEngine:
    """State that is a function of the step. Only what `checkpoint` uses of an Engine."""

    zero_stage, dtype, trainable = 1, "fp32", sorted(SHAPES)

    def __init__(self, step: int) -> None:
        self.state = {
            f"{part}/{name}": torch.full(shape, float(step)) + index / 8 + torch.rand(
                shape, generator=torch.Generator().manual_seed(step)
            )
            for part, (index, (name, shape)) in itertools.product(("model", "exp_avg"), enumerate(SHAPES.items()))
        }  # fmt: skip
        self.step = step

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def named_state(self, keep: Keep = lambda index: True) -> Iterator[tuple[str, Tensor | None]]:
        for index, (name, tensor) in enumerate(self.state.items()):
            dist.all_reduce([0.0])  # as the real ones: all ranks together
            yield name, tensor if keep(index) else None

    def counters(self) -> dict[str, Any]:
        return {"adam_step": self.step, "skipped_steps": 0}

    def load_state(self, read: ReadTensor, counters: dict[str, Any]) -> None:
        self.state = {name: read(name).clone() for name in self.state_spec()}
        self.step = counters["adam_step"]


def meta(step: int = 0, run_id: str = "run-1", model: str = "m", data: str = "d") -> checkpoint.Meta:
    return checkpoint.Meta(run_id, model, {"books": data}, {"step": step})


def save(run_dir: Path, step: int, engine: FakeEngine | None = None, **identity: str) -> str | None:
    return checkpoint.save(run_dir, step, engine or FakeEngine(step), meta(step, **identity))


def holds(newest: checkpoint.Checkpoint | None, step: int) -> bool:
    """Whether a found checkpoint has exactly the state of that step."""
    assert newest is not None
    engine = FakeEngine(0)
    progress = checkpoint.load(newest, engine, meta())
    expected = FakeEngine(step).state
    same = all(torch.equal(engine.state[name], expected[name]) for name in expected)
    return same and (newest.step, progress, engine.step) == (step, {"step": step}, step)


def save_two_more(run_dir: str, first: int) -> list[str | None]:
    """In a forked rank: a locked save of step `first`, a prune, and the same for the next step. Errors by step."""
    from tests.engine.scenarios import engine_config

    start(engine_config())
    errors = []
    with checkpoint.RunLock(Path(run_dir)) as lock:
        for step in (first, first + 1):
            errors.append(checkpoint.save(Path(run_dir), step, FakeEngine(step), meta(step), lock))
            checkpoint.prune(Path(run_dir), 2, "run-1")
    return errors


def recover(run_dir: str) -> int:
    """In a forked rank: what a restart does. The step it starts from, verified; -1 for none."""
    from tests.engine.scenarios import engine_config

    start(engine_config())
    with checkpoint.RunLock(Path(run_dir)):
        newest = checkpoint.find(Path(run_dir), "run-1", clean=True)
        assert newest is None or holds(newest, newest.step)
    return -1 if newest is None else newest.step
