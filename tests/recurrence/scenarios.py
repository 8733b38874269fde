"""What the forked ranks of the recurrence tests do: a tiny Transformer-XL on streams, functions of the step."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch

from coca_train import checkpoint, engine
from coca_train.engine.base import Engine
from coca_train.engine.recurrence import RecurrentEngine
from coca_train.models.init import init_parameter
from coca_train.models.transformer import build_model
from coca_train.runtime import dist
from coca_train.settings import load as load_config
from tests import states
from tests.engine import scenarios
from tests.engine.scenarios import Batch, digest, meta

VOCAB, LENGTH, ROWS = 61, 6, 8
TINY = [
    "model.n_layers=2", "model.d_model=16", "model.n_heads=2", "model.d_ff=24", "data.order=stream",
    f"train.seq_len={LENGTH}", f"train.global_batch_size={ROWS}", "train.micro_batch_size=2",
]  # fmt: skip


def wraps(row: int, step: int) -> bool:
    """Whether a row begins its text anew: every row after another number of steps, all of them at step 0."""
    return step % (4 + row % 3) == 0


def batches(step: int, micro: int) -> list[Batch]:
    """This rank's micro batches: row r reads a text of its own, from its beginning after every wrap."""
    share = ROWS // dist.world_size()
    rows = range(dist.rank() * share, (dist.rank() + 1) * share)
    texts = torch.stack([text(row)[(at := step % (4 + row % 3) * LENGTH) : at + LENGTH + 1] for row in rows])
    continues = torch.tensor([not wraps(row, step) for row in rows])
    pos = torch.arange(LENGTH).expand(micro, -1)
    return [
        Batch(texts[at : at + micro, :-1], texts[at : at + micro, 1:], pos, None, continues[at : at + micro])
        for at in range(0, share, micro)
    ]


def text(row: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (6 * LENGTH + 1,), generator=torch.Generator().manual_seed(row))


def build(memory_len: int, micro: int, settings: tuple[str, ...], **changes: Any) -> Engine:
    torch.set_num_threads(1)
    config = load_config([*TINY, "position=transformer_xl", f"position.memory_len={memory_len}", *settings]).config
    return engine.build(
        scenarios.engine_config(**changes), scenarios.OPTIM, lambda: build_model(config, VOCAB),
        lambda name, tensor: init_parameter(name, tensor, config.model, config.position, 3),
        trainable=["*"], micro_batch_size=micro, accumulation=ROWS // dist.world_size() // micro,
        memory=engine.SegmentMemorySize(2, memory_len, config.model.d_model) if memory_len else None,
    )  # fmt: skip


def train(
    steps: int,
    load: str | None = None,
    save: str | None = None,
    save_at: int | None = None,
    poison: dict[str, Any] | None = None,
    memory_len: int = LENGTH,
    micro: int = 2,
    settings: tuple[str, ...] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Train up to step `steps`, from 0 or from the checkpoint in `load`; save into `save` after `save_at` steps.

    poison: {step, rank} makes the loss NaN there. Engine options in changes, other overrides in settings.
    """
    built = build(memory_len, micro, tuple(settings), **changes)
    first, loaded = 0, None
    if load is not None:
        newest = checkpoint.find(Path(load), "run-1")
        assert newest is not None
        first = checkpoint.load(newest, built, meta())["step"]
        loaded = digest(built)
    losses, lengths, skips, saved = [], [], [], None
    for step in range(first, steps):
        undo = None
        if poison and (poison["step"], poison["rank"]) == (step, dist.rank()):
            undo = scenarios._poison(built, {"what": "loss"})
        result = built.train_step(batches(step, micro), 3e-3)
        if undo is not None:
            undo()
        losses.append(result.loss)
        skips.append(result.skipped)
        if isinstance(built, RecurrentEngine):
            lengths.append(list(chain.from_iterable(dist.all_gather_object(built.memory.length_R.tolist()))))
        if save is not None and step + 1 == save_at:
            assert states.save(Path(save), step + 1, built, meta(step + 1)) is None
            saved = digest(built)
    before = digest(built)
    with built.eval_module() as module, torch.no_grad():
        batch = batches(0, micro)[0]
        validation = float(module(batch.tokens_BT, batch.targets_BT, batch.pos_BT, None))
    assert digest(built) == before, "evaluation has changed the state"
    finite = all(bool(tensor.isfinite().all()) for tensor in states.full_state(built).values())
    answer = {"losses": [loss if loss == loss else None for loss in losses], "lengths": lengths, "skips": skips}
    answer |= {"digest": before, "saved": saved, "loaded": loaded, "validation": validation, "finite": finite}
    built.close()
    return answer
