"""Rules of `engine.sequence_parallel`: what ranks that share a sequence must be able to cut evenly, and the batches of
all ranks."""

import math
from collections.abc import Iterator

from coca_train.config.messages import Problem
from coca_train.config.schema import EngineConfig, ModelConfig, TrainConfig
from coca_train.config.world import World, divisors

KEY = "engine.sequence_parallel"


def slices(engine: EngineConfig, model: ModelConfig, train: TrainConfig) -> Iterator[Problem]:
    """Heads and tokens that do not divide evenly; and an engine of one process."""
    n = engine.sequence_parallel
    if n == 1:
        return
    if engine.kind == "local":
        text = "the local engine is one process, and has every sequence alone"
        yield Problem("E-CFG-80", (KEY, "engine.kind"), text, f"write engine=deepspeed, or {KEY}=1")
    for key, whole, what in (
        ("model.n_heads", model.n_heads, "heads cannot be shared evenly"),
        ("train.seq_len", train.seq_len, "tokens cannot be cut into slices of one length"),
    ):
        if whole % n:
            text = f"{whole:,} {what} by {n} processes"
            yield Problem("E-CFG-80", (KEY, key), text, f"write {KEY}={math.gcd(whole, n)}")


def batches(train: TrainConfig, engine: EngineConfig, world: World) -> Iterator[Problem]:
    """Processes that come in groups which share a sequence, and global batches that come to all groups alike."""
    shared = engine.sequence_parallel
    if world.size % shared:
        text = f"{world.size} processes are no groups of {shared}"
        fix = f"start a multiple of {shared} processes, or write {KEY}={math.gcd(world.size, shared)}"
        yield Problem("E-CFG-81", (KEY,), text, fix)
        return
    whole, micro, n = train.global_batch_size, train.micro_batch_size, world.size // shared
    unit = micro * n
    if whole % unit == 0:
        return
    below, above = max(whole // unit, 1) * unit, (whole // unit + 1) * unit
    legal = [(size, micro) for size in list(dict.fromkeys((below, above, above + unit)))[:2]]
    each = whole // n if whole % n == 0 else 0
    legal += [(whole, m) for m in divisors(each, micro)[: 3 - len(legal)]]
    sets = ", ".join(f"{size} with {m}" for size, m in legal)
    each_of, devices = ("device", "devices") if shared == 1 else ("group", f"groups of {shared} devices")
    text = f"{whole} sequences are not a multiple of {micro} per {each_of} x {n} {devices} = {unit}"
    keys = ("train.global_batch_size", "train.micro_batch_size")
    yield Problem("E-CFG-19", keys, text, f"nearest legal (global with micro): {sets}")
