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
    whole, n = train.global_batch_size, world.size // shared
    if whole % n == 0:
        return
    sizes = [size for size in (whole // n * n, (whole // n + 1) * n) if size]
    devices = "devices" if shared == 1 else f"groups of {shared} devices"
    text = f"{whole} sequences cannot be shared evenly by {n} {devices}"
    fix = "write " + " or ".join(f"train.global_batch_size={size}" for size in sizes)
    yield Problem("E-CFG-19", ("train.global_batch_size",), text, fix)


def micro_batch_size(train: TrainConfig, engine: EngineConfig, n_devices: int) -> int:
    """Return the sequences of one forward on each device: the most that train.micro_batch_size allows and that divide
    the device's part of the global batch, which `batches` has let through."""
    rows = train.global_batch_size * engine.sequence_parallel // n_devices
    return max(m for m in divisors(rows, train.micro_batch_size) if m <= train.micro_batch_size)
