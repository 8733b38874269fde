"""Device choice and the process groups. Works alone, under torchrun and under the deepspeed launcher."""

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from torch._C._distributed_c10d import HashStore
from torch.nn.attention import SDPBackend

from coca_train.config.schema import EngineConfig
from coca_train.models.ulysses import AllToAll, SequenceShare
from coca_train.runtime import dist, shutdown, watchdog
from coca_train.runtime.errors import LaunchError, PeerLost, UserError

# Variables of torch and NCCL where the user has not set them; both read them when they start. Segments that grow:
# or memory is left in pieces by tensors of many sizes (ZeRO 3's gathers, long windows). WARN: NCCL says why it fails.
CUDA_DEFAULTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_DEBUG": "WARN"}
# Of a deterministic run: cuBLAS needs a workspace of its own for each stream; a tree of ranks, or sums inside a switch,
# may be chosen differently by every start.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RESOLVE_S = 10.0
LOOK_S = 0.1


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device of this rank. Raises UserError when cuda is configured and there is none."""
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
    prepare(device, config.deterministic)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        order_attention(torch.cuda.get_device_capability(device))
    if torch_dist.is_initialized() or (config.kind == "local" and dist.world_size() == 1):
        return device
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=config.timeout_s)
    if dist.world_size() == 1:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
            os.environ.setdefault(name, value)
        try:
            torch_dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        except RuntimeError as error:
            raise LaunchError(
                f"E-RUN-02 {socket.gethostname()}: torch cannot begin with this machine's own address "
                f"({shutdown.first_sentence(error)}). Fix: GLOO_SOCKET_IFNAME=lo, or this name in /etc/hosts"
            ) from error
        return device
    check_launch()
    try:
        with dist.waiting("the meeting of the ranks"):
            _await_store(config.timeout_s)
            torch_dist.init_process_group(backend, timeout=timeout)
    except (torch_dist.DistError, RuntimeError, OSError) as error:
        raise meeting_error(error, config.timeout_s) from None
    watchdog.watch_connections(shutdown.connect_ranks())
    return device


def prepare(device: torch.device, deterministic: bool) -> None:
    """Set what must be set before anything runs on the device: the environment, and whether algorithms are
    deterministic."""
    if device.type == "cuda":
        variables = CUDA_DEFAULTS | (DETERMINISTIC if deterministic else {})
        if "PYTORCH_ALLOC_CONF" in os.environ:  # the same, by its newer name
            variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        for name, value in variables.items():
            os.environ.setdefault(name, value)
    # SDPA reads this too: its backward pass adds in a fixed order then, where it would use atomics, and cuDNN's is out.
    torch.use_deterministic_algorithms(deterministic)
    # Else every empty tensor is filled (ZeRO's buckets above all), which only hides reads of what was never written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def order_attention(capability: tuple[int, int]) -> None:
    """Order the fused kernels that torch tries: on Hopper cuDNN's, as the FlashAttention 2 that torch has knows nothing
    of that generation's units and reaches about half the rate there. Elsewhere torch's own order."""
    if capability[0] == 9:
        order = [int(backend) for backend in torch._C._get_sdp_priority_order()]
        cudnn = int(SDPBackend.CUDNN_ATTENTION)  # pyright: ignore[reportArgumentType]
        torch._C._set_sdp_priority_order([cudnn, *(backend for backend in order if backend != cudnn)])


def check_launch() -> None:
    """Raise LaunchError where the launcher's environment can lead to no meeting."""
    size, missing = dist.world_size(), [name for name in NEEDED if not os.environ.get(name)]
    if missing or dist.rank() >= size:
        what = f"{', '.join(missing)} not set" if missing else f"RANK={dist.rank()}"
        raise LaunchError(
            f"E-RUN-01 environment WORLD_SIZE={size}: {what}; a launcher sets them all. "
            f"Fix: torchrun --nproc_per_node {size} -m coca_train …"
        )
    port, host = os.environ["MASTER_PORT"], os.environ["MASTER_ADDR"]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise LaunchError(
            f"E-RUN-02 environment MASTER_PORT={port!r}: rank {dist.rank()} of {size} needs a number from 1 to 65535. "
            "Fix: MASTER_PORT=29500, the same on all ranks"
        )
    if (problem := _resolve_error(host)) is not None:
        raise LaunchError(
            f"E-RUN-02 environment MASTER_ADDR={host!r}: rank {dist.rank()} of {size} does not know this machine "
            f"({problem.strerror}). Fix: MASTER_ADDR=<the address of the machine of rank 0>, the same on all ranks"
        )


def _await_store(timeout_s: float) -> None:
    """Wait until the store of rank 0 or of torchrun can be reached. Raises OSError when it cannot in time.

    torch would do this too, twice, and so exceed the timeout by far.
    """
    if dist.rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # makes it
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    end = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(where, timeout=max(end - time.monotonic(), LOOK_S)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(LOOK_S)


def _resolve_error(host: str) -> OSError | None:
    """Return why a host name has no address; None: it has one. A name server that does not answer is tried again for a
    while."""
    end = time.monotonic() + RESOLVE_S
    while True:
        try:
            socket.getaddrinfo(host, None)
            return None
        except (OSError, UnicodeError) as error:
            problem = error if isinstance(error, OSError) else OSError(0, "no name of a machine")
        if problem.errno != socket.EAI_AGAIN or time.monotonic() > end:
            return problem
        time.sleep(1)


def meeting_error(error: Exception, timeout_s: float) -> UserError:
    """Return the error to leave with, when the ranks did not meet."""
    who = f"rank {dist.rank()} of {dist.world_size()}"
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if "EADDRINUSE" in str(error):
        return LaunchError(
            f"E-RUN-02 environment MASTER_PORT={os.environ['MASTER_PORT']}: {who} cannot listen there, another program "
            "does. Fix: another MASTER_PORT, the same on all ranks"
        )
    return PeerLost(
        f"E-RUN-15 {who}: did not meet the others at {where} within {timeout_s} s ({shutdown.first_sentence(error)}). "
        "Fix: look at the first error of the other ranks, then run the same command again; if all of them live, "
        "MASTER_ADDR must be the machine of rank 0"
    )


def join_sequence_group(size: int) -> SequenceShare | None:
    """COLLECTIVE. Return this rank's share of its sequences (`engine.sequence_parallel`, models/ulysses.py); None: it
    has them alone. size: ranks of a sequence.

    The ranks of a sequence are neighbours, so that what they exchange in every layer stays within a machine where it
    can. To ZeRO they are ranks like all others: weights and optimizer are sharded over all of them, and the gradient of
    a step, the sum of what every rank has from its slice, is summed over the whole world.
    """
    if size == 1:
        return None
    # Every rank makes all groups, in the same order, and keeps its own.
    group, _ = torch_dist.new_subgroups(group_size=size)
    assert isinstance(group, torch_dist.ProcessGroup)
    return SequenceShare(dist.rank() % size, size, AllToAll(group))


def set_group_timeouts(timeout_s: int) -> None:
    """Set the timeout of every process group. DeepSpeed creates groups that wait 30 minutes whatever timeout is
    configured."""
    world = torch_dist.distributed_c10d._world
    for group in list(world.pg_map):
        torch_dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def stop() -> None:
    """Leave the process group, all ranks together: without the barrier gloo aborts in one of four runs."""
    if torch_dist.is_initialized():
        # NCCL gets the device, or it warns that it takes the current one.
        own = [torch.cuda.current_device()] if torch_dist.get_backend() == "nccl" else None
        with dist.waiting("leaving the process group"):
            torch_dist.barrier(device_ids=own)
            torch_dist.destroy_process_group()
