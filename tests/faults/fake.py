"""An engine that is only a few tensors: what checkpoints are tested with when no training is needed."""

import itertools
import math
import time
from pathlib import Path
from typing import Any, cast

import torch

from coca_train import checkpoint
from coca_train.checkpoint.format import ShardWriter
from coca_train.engine import start
from coca_train.engine.base import ReadRange, Slice, even_share
from coca_train.runtime import dist
from tests import states

SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (7, 5), "norm.weight": (5,), "scale": (), "none": (0, 3)}


class FakeEngine:
    """State that is a function of the step. Only what `checkpoint` uses of an Engine."""

    zero_stage, dtype, trainable, device = 1, "fp32", sorted(SHAPES), torch.device("cpu")

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

    def slices(self) -> list[Slice]:
        cut = even_share(self.state_spec())
        return [Slice(name, start, self.state[name].flatten()[start:stop]) for name, start, stop in cut]

    def counters(self) -> dict[str, Any]:
        return {"adam_step": self.step, "skipped_steps": 0}

    def load_state(self, read: ReadRange, counters: dict[str, Any]) -> None:
        self.state = {
            name: read(name, 0, math.prod(shape)).view(shape).clone() for name, shape in self.state_spec().items()
        }
        self.step = counters["adam_step"]


def meta(step: int = 0, run_id: str = "run-1", model: str = "m", data: str = "d") -> checkpoint.Meta:
    return checkpoint.Meta(run_id, model, {"books": data}, {"step": step})


def save(run_dir: Path, step: int, engine: FakeEngine | None = None, **identity: str) -> str | None:
    return states.save(run_dir, step, cast(Any, engine or FakeEngine(step)), meta(step, **identity))


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
            errors.append(states.save(Path(run_dir), step, cast(Any, FakeEngine(step)), meta(step), lock))
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


def save_together(run_dir: str) -> str | None:
    """In a forked rank: a save whose threads wait for each other, as the main threads do meanwhile. Its error."""
    from tests.engine.scenarios import engine_config

    start(engine_config())
    write, marks = ShardWriter.write, Path(run_dir).with_name("marks")

    def meeting(self: ShardWriter, name: str, *parts: torch.Tensor) -> None:
        (marks / str(dist.rank())).touch()
        end = time.monotonic() + 60
        while len(list(marks.iterdir())) < dist.world_size():
            if time.monotonic() > end:
                raise OSError("the other ranks do not write")
            time.sleep(0.01)
        write(self, name, *parts)

    ShardWriter.write = meeting
    saves = checkpoint.Saves(Path(run_dir), cast(Any, FakeEngine(30)))
    assert saves.begin(30, meta(30)) is None
    assert dist.all_reduce([1.0]) == [float(dist.world_size())]  # a step
    assert saves.proceed(wait=True)
    return None if saves.error is None else str(saves.error)
