"""A real step on this machine, timed by torch's profiler, by the parts of count.py."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from coca_train import engine
from coca_train.config.schema import LoraConfig
from coca_train.data.batch import Batch
from coca_train.engine.base import Engine
from coca_train.models.transformer import Transformer, build_model
from coca_train.planning.count import COMMUNICATION, OPTIMIZER, Count
from coca_train.planning.hardware import GIB, Gpu, find_gpu
from coca_train.planning.memory import gpu_memory
from coca_train.planning.meta_step import count_operations
from coca_train.planning.outline import Outline
from coca_train.runtime.errors import UserError

MARK = "coca_train: "  # before a part, in the profiler's records


def measure_step(
    outline: Outline, n_micro_batches: float, *, trainable: Sequence[str] = ("*",), lora: LoraConfig | None = None
) -> dict[str, float]:
    """Return the seconds of a step of so many micro batches, by part: one process runs a micro batch and its update.

    n_micro_batches: of whole sequences; of shared sequences, as many as one GPU computes in all. trainable, lora: of
    the stage. Raises UserError where this machine lacks the memory.
    """
    config = replace(outline.config, engine=replace(outline.config.engine, sequence_parallel=1))
    outline, train = replace(outline, config=config), config.train
    device = engine.start(config.engine)
    needed, machine = gpu_memory(outline, 1, device.type).total, _this_machine(device)
    if needed > machine.usable:
        raise UserError(
            f"E-PLN-06 command line measure=true: a step of micro batch {train.micro_batch_size} needs "
            f"{needed / GIB:,.1f} GiB in one process, {machine.device} has {machine.usable / GIB:,.1f}. "
            "Fix: measure=false, or a smaller train.micro_batch_size"
        )
    model = outline.model
    size = engine.SegmentMemorySize(config.model.n_layers, model.position.memory_len, config.model.d_model)
    built = engine.build(
        config.engine,
        config.optim,
        partial(build_model, config, model.embed.num_embeddings, trainable, lora),
        _fill,
        trainable=trainable,
        micro_batch_size=train.micro_batch_size,
        accumulation=1,
        memory=size if size.memory_len else None,
    )
    tokens_BT = torch.randint(model.embed.num_embeddings, (train.micro_batch_size, train.seq_len))
    batch = Batch(tokens_BT, tokens_BT, torch.arange(train.seq_len).expand_as(tokens_BT).clone(), None)
    try:
        built.train_step([batch], 0.0)  # a warm-up
        seconds = _timed(built, batch)
    finally:
        built.release()
    once = (OPTIMIZER, COMMUNICATION)
    return {part: taken * (1 if part in once else n_micro_batches) for part, taken in seconds.items()}


def _timed(built: Engine, batch: Batch) -> dict[str, float]:
    """Return the seconds of one step by part, as the profiler saw its operations: on the GPU, where there is one."""
    on_gpu, model = built.device.type == "cuda", built.model
    assert isinstance(model, Transformer)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    count = Count([built.device.type], outside=OPTIMIZER, around=lambda part, name: record_function(f"{MARK}{part}"))
    with profile(activities=activities) as profiler, count_operations(model, count, built.device.type), count:
        built.train_step([batch], 0.0)
    seconds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        if event.key.startswith(MARK):
            taken_us = event.device_time_total if on_gpu else event.cpu_time_total
            seconds[event.key.removeprefix(MARK)] += taken_us / 1e6
    return dict(seconds)


def _fill(name: str, tensor: torch.Tensor) -> None:
    tensor.normal_(std=0.02)


def _this_machine(device: torch.device) -> Gpu:
    """Return this machine's memory."""
    if device.type == "cpu":
        return find_gpu("cpu")
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, properties.total_memory)
