"""The whole state of an engine, a save that is waited for, and a run whose record is written."""

import math
from pathlib import Path

import torch
from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.record import open_record, write_record
from coca_train.config.load import Loaded
from coca_train.config.schema import Config
from coca_train.engine.base import Engine
from coca_train.runtime import dist
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.stages import resolve


def full_state(engine: Engine) -> dict[str, Tensor]:
    """COLLECTIVE. Every tensor of the state in float32, put together from the slices of all ranks."""
    own = [(name, start, values.detach().float().cpu().clone()) for name, start, values in engine.slices()]
    state = {}
    for name, shape in engine.state_spec().items():
        state[name] = torch.full((math.prod(shape),), torch.nan)
    for name, start, values in (one for of_rank in dist.all_gather_object(own) for one in of_rank):
        place = state[name][start : start + len(values)]
        assert len(place) == len(values) and bool(place.isnan().all()), f"{name} from {start} on is there twice"
        place.copy_(values)
    return {name: state[name].view(shape) for name, shape in engine.state_spec().items()}


def save(
    run_dir: Path,
    step: int,
    engine: Engine,
    meta: checkpoint.Meta,
    lock: checkpoint.RunLock | None = None,
    frozen: checkpoint.Frozen | None = None,
) -> str | None:
    """COLLECTIVE. A save from its beginning to its end; the line for the user where it failed."""
    saves = checkpoint.Saves(run_dir, engine, lock, frozen)
    error = saves.begin(step, meta)
    if error is None and saves.in_flight:
        assert saves.proceed(wait=True)
        error = saves.error
    return None if error is None else str(error)


def begin_record(run_dir: Path, loaded: Loaded[Config], fingerprint: JsonObject) -> JsonObject:
    """The record of a run of one stage without held-out text, as a start leaves it."""
    stages = resolve(loaded.config)
    record, is_changed = open_record(run_dir, loaded, stages, {"all": fingerprint}, {"all": {}}, {})
    if is_changed:
        write_record(run_dir, record, loaded.record)
    return record
