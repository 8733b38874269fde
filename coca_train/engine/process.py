"""Device choice and the process group. Works alone, under torchrun and under the deepspeed launcher."""

import os
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from torch._C._distributed_c10d import HashStore

from coca_train.config.schema import EngineConfig
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def choose_device(config: EngineConfig) -> torch.device:
    """The device of this rank. Raises UserError when cuda is asked for and there is none."""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "cpu" or (config.device == "auto" and not available):
        return torch.device("cpu")
    if dist.local_rank() >= available:
        raise UserError(
            f"E-RUN-04 engine.device {config.device}: rank {dist.rank()} needs GPU number {dist.local_rank()}, "
            f"this machine shows {available}. Fix: start one process per GPU, or engine.device=cpu"
        )
    return torch.device("cuda", dist.local_rank())


def start(config: EngineConfig) -> torch.device:
    """Join the process group (gloo on CPU, NCCL on GPUs) and return this rank's device. Idempotent.

    A single process needs no launcher and no port: its group lives on an in-memory store.
    """
    device = choose_device(config)
    os.environ["DS_ACCELERATOR"] = device.type  # read when deepspeed is imported; else it guesses and warns
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if torch_dist.is_initialized() or (config.kind == "local" and dist.world_size() == 1):
        return device
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=config.timeout_s)
    if dist.world_size() == 1:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
            os.environ.setdefault(name, value)
        torch_dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        return device
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing or dist.rank() >= dist.world_size():
        what = f"{', '.join(missing)} not set" if missing else f"RANK={dist.rank()}"
        raise UserError(
            f"E-RUN-01 environment WORLD_SIZE={dist.world_size()}: {what}; a launcher sets them all. "
            f"Fix: torchrun --nproc_per_node {dist.world_size()} -m coca_train …"
        )
    try:
        torch_dist.init_process_group(backend, timeout=timeout)
    except torch_dist.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"E-RUN-02 environment MASTER_ADDR/MASTER_PORT {where}: rank {dist.rank()} of {dist.world_size()} could "
            f"not meet the others ({str(error).splitlines()[0]}). Fix: start all ranks, with a free port"
        ) from None
    return device


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or in the host."""
    of_host = isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
    return of_host or isinstance(error, torch.OutOfMemoryError)


def bound_waits(timeout_s: int) -> None:
    """Give every process group the timeout. DeepSpeed makes groups that wait 30 minutes whatever one asked for."""
    world = torch_dist.distributed_c10d._world
    for group in list(world.pg_map):
        torch_dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def stop() -> None:
    """Leave the process group, all ranks together: without the barrier gloo aborts in one of four runs."""
    if torch_dist.is_initialized():
        torch_dist.barrier()
        torch_dist.destroy_process_group()
