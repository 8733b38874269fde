"""Time and memory of a piece of work on this device."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

GIB = 2**30


def milliseconds(work: Callable[[], Any], device: str, times: int) -> float:
    """Median of so many, after two that pay for set-up."""
    for _ in range(2):
        work()
    taken = []
    for _ in range(times):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def peak_gib(work: Callable[[], Any], device: str) -> float:
    """Most memory of the GPU while it runs once; 0 on a CPU, where nobody counts it."""
    if device == "cpu":
        work()
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / GIB
