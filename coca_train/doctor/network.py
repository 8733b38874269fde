"""What ranks have between them: clocks, links to their neighbours, and the all-reduce of all of them."""

import time
from collections.abc import Callable

import torch
import torch.distributed as torch_dist

BARRIERS = 20
LINK_REPEATS = 9
LINK_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
REDUCE_S = 0.5  # for one size
REPEATS = (3, 200)
KIB, MIB = 1024, 2**20


def reduce_sizes(largest_mib: int) -> list[int]:
    """4 KiB, then 1 MiB and sixteen times as much each time, up to the largest [bytes]."""
    sizes, size = [4 * KIB], MIB
    while size < largest_mib * MIB:
        sizes.append(size)
        size *= 16
    return [*sizes, largest_mib * MIB]


def barrier_stamps(device: torch.device) -> list[tuple[float, float]]:
    """COLLECTIVE. When this rank entered and left each of BARRIERS barriers, by its clock [seconds since 1970]."""
    stamps, one = [], torch.zeros(1, device=device)
    for number in range(BARRIERS + 1):
        entered = time.time()
        torch_dist.all_reduce(one)
        _finish(device)
        if number:  # the first makes connections
            stamps.append((entered, time.time()))
    return stamps


def reduce_seconds(size: int, device: torch.device, agree: Callable[[float], int]) -> list[float]:
    """COLLECTIVE. Seconds of all-reduces of float32 tensors of `size` bytes. agree: a first time -> how many, the same
    on all ranks."""
    values, seconds = torch.zeros(max(size // 4, 1), device=device), []
    torch_dist.all_reduce(values)
    _finish(device)
    began = time.monotonic()
    torch_dist.all_reduce(values)
    _finish(device)
    for _ in range(agree(time.monotonic() - began)):
        began = time.monotonic()
        torch_dist.all_reduce(values)
        _finish(device)
        seconds.append(time.monotonic() - began)
    return seconds


def repeats(slowest_s: float) -> int:
    """How many fit into REDUCE_S."""
    least, most = REPEATS
    return min(most, max(least, int(REDUCE_S / max(slowest_s, 1e-6))))


def bus_bandwidth(size: int, seconds: float, n_ranks: int) -> float:
    """Bytes/s that each link of a ring carries in an all-reduce that takes this time: 2 (n - 1) / n of its bytes, the
    figure that nccl-tests calls bus bandwidth."""
    return 2 * (n_ranks - 1) / n_ranks * size / seconds


def ring(n_ranks: int) -> list[list[tuple[int, int]]]:
    """Each rank and the next, the last and the first: in phases in which no rank has two links. Two ranks have one."""
    if n_ranks < 3:
        return [[(0, 1)]] if n_ranks == 2 else []
    links = [(rank, (rank + 1) % n_ranks) for rank in range(n_ranks)]
    odd = n_ranks % 2
    return [links[0 : n_ranks - odd : 2], links[1::2], *([[links[-1]]] if odd else [])]


def link_rates(rank: int, phases: list[list[tuple[int, int]]], device: torch.device) -> dict[str, list[float]]:
    """COLLECTIVE. Bytes/s there and back over each link that begins at this rank, as "0-1", LINK_REPEATS times.

    All links of a phase are busy at once, as in a training.
    """
    values, rates = torch.zeros(LINK_BYTES[device.type] // 4, device=device), {}
    for links in phases:
        own = next((link for link in links if rank in link), None)
        seconds = []
        for _ in range(LINK_REPEATS + 1):  # the first makes connections
            torch_dist.barrier()
            began = time.monotonic()
            if own is not None:
                first, second = own
                if rank == first:
                    torch_dist.send(values, second)
                    torch_dist.recv(values, second)
                else:
                    torch_dist.recv(values, first)
                    torch_dist.send(values, first)
                _finish(device)
            seconds.append(time.monotonic() - began)
        if own is not None and own[0] == rank:
            rates[f"{own[0]}-{own[1]}"] = [2 * LINK_BYTES[device.type] / each for each in seconds[1:]]
    return rates


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
