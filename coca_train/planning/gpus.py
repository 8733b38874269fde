"""GPUs by short names: their memory, and where throughput.py knows their peak."""

import os
from dataclasses import dataclass

import torch

from coca_train.config.messages import nearest
from coca_train.runtime.errors import UserError
from coca_train.tracking.throughput import Peak, gpu_peak, measured_peak

GIB = 2**30
FRAGMENTS = 0.03  # of a GPU's memory, which its allocator cannot hand out: assumed


@dataclass(frozen=True)
class Gpu:
    """device: its name as CUDA tells it. memory: what torch can see of it [bytes]. kind: cuda, or cpu for this host."""

    device: str
    memory: float
    kind: str = "cuda"

    @property
    def noun(self) -> str:
        return "GPU" if self.kind == "cuda" else "CPU"

    @property
    def usable(self) -> float:
        """What of the memory a run can have [bytes]."""
        return self.memory * (1 - FRAGMENTS) if self.kind == "cuda" else self.memory


# Data sheets count in GB, and a part is never to be had: these are totals as CUDA tells them, rounded down [GiB].
GPUS = {
    name: Gpu(device, gib * GIB)
    for name, device, gib in (
        ("t4", "Tesla T4", 14.5),
        ("v100_16gb", "Tesla V100-SXM2-16GB", 15.7),
        ("v100_32gb", "Tesla V100-SXM2-32GB", 31.7),
        ("rtx_3090", "NVIDIA GeForce RTX 3090", 23.5),
        ("rtx_4090", "NVIDIA GeForce RTX 4090", 23.5),
        ("a6000", "NVIDIA RTX A6000", 47.4),
        ("a40", "NVIDIA A40", 44.4),
        ("l40s", "NVIDIA L40S", 44.4),
        ("a100_40gb", "NVIDIA A100-SXM4-40GB", 39.3),
        ("a100_80gb", "NVIDIA A100-SXM4-80GB", 79.1),
        ("h100", "NVIDIA H100 80GB HBM3", 79.1),
        ("h200", "NVIDIA H200", 139.7),
        ("b200", "NVIDIA B200", 178.0),
    )
}


def find(name: str) -> Gpu:
    """A GPU, or `cpu`: this host with all its memory. Raises UserError with the nearest names."""
    if name == "cpu":
        return Gpu("this host's CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")
    if name in GPUS:
        return GPUS[name]
    close = [each for each in GPUS if each.startswith(name)] or nearest(name, [*GPUS, "cpu"])
    fix = f"did you mean {' or '.join(close)}?" if close else f"the names are {', '.join(GPUS)}, cpu"
    raise UserError(f"E-PLN-02 command line gpu={name}: there is no such GPU. Fix: {fix}")


def peak_of(gpu: Gpu, dtype: str) -> Peak:
    """Its peak in this dtype (of a CPU: measured, 0.2 s). Raises UserError where it has none (bf16 before Ampere)."""
    if gpu.kind == "cpu":
        return measured_peak(torch.device("cpu"), dtype)
    peak = gpu_peak(gpu.device, dtype, tf32=False)
    if peak is None:
        raise UserError(
            f"E-PLN-03 engine.dtype={dtype}: {gpu.device} does not compute in it at any rate worth planning. "
            "Fix: engine.dtype=fp16, or another gpu="
        )
    return peak
