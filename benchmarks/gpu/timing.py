"""Time and memory of a piece of work on this device."""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

GIB = 2**30
LEAST_MS = (
    10.0  # of one timing on a GPU: what takes less is repeated, or the host's launch of it would be timed with it
)


def milliseconds(work: Callable[[], Any], device: str, times: int) -> float:
    """Median of so many, after two that pay for set-up."""
    timed = _by_events if device == "cuda" else _by_clock
    work()
    once_ms = timed(work, 1)
    repeats = math.ceil(LEAST_MS / once_ms) if device == "cuda" else 1
    return statistics.median(timed(work, repeats) for _ in range(times))


def _by_events(work: Callable[[], Any], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def _by_clock(work: Callable[[], Any], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return 1e3 * (time.perf_counter() - began) / repeats


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
