"""GPUs by short names, their rates, and what a step takes of the host that launches it.

Rates are published, measured or assumed. Bandwidth, the share of it that elementwise operations reach, and the shares
of the data sheet's FLOP/s that matrix products and fused attention reach: of the A100 they are published. Of Hopper
bandwidth and products are, and an H200 and an H100 confirmed them (docs/gpu.md); attention (cuDNN's, which the engine
puts first there; FlashAttention 2 reached 33 %) and elementwise operations were measured on the H200. It has the H100's
chip: the same shares, and of its memory's bandwidth the share that the H100 reaches of its own; so has the smaller
A100. Links: assumed, what a collective reaches of NVLink's data sheet (one direction) among 8 GPUs of a node, and
beyond of the network cards of a DGX node together.
"""

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch

from coca_train.config.schema import EngineConfig
from coca_train.planning.count import Operation
from coca_train.planning.engines import DEEPSPEED, LOCAL, engine_and_stage
from coca_train.runtime.errors import UserError
from coca_train.tracking.throughput import Peak, gpu_peak, measured_peak

GIB = 2**30
FRAGMENTS = 0.03  # of a GPU's memory, lost to fragmentation: assumed


@dataclass(frozen=True)
class Gpu:
    """A GPU, or this host's CPU."""

    device: str  # the name that CUDA reports
    memory: float  # visible to torch [bytes]
    kind: str = "cuda"  # or cpu

    @property
    def noun(self) -> str:
        return "GPU" if self.kind == "cuda" else "CPU"

    @property
    def usable(self) -> float:
        """The memory that a run can use [bytes]."""
        return self.memory * (1 - FRAGMENTS) if self.kind == "cuda" else self.memory


# Totals that CUDA reports, rounded down [GiB]; data sheets count in GB, and include reserved memory.
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


def find_gpu(name: str) -> Gpu:
    """Return a GPU of GPUS, or for `cpu` this host with all its memory."""
    if name == "cpu":
        return Gpu("this host's CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "cpu")
    return GPUS[name]


def peak_of(gpu: Gpu, dtype: str) -> Peak:
    """Return its peak in this dtype (of a CPU: measured, 0.2 s).

    Raises UserError where it has none (bf16 before Ampere).
    """
    if gpu.kind == "cpu":
        return measured_peak(torch.device("cpu"), dtype)
    peak = gpu_peak(gpu.device, dtype, tf32=False)
    if peak is None:
        raise UserError(
            f"E-PLN-03 engine.dtype={dtype}: {gpu.device} does not compute in it at any rate worth planning. "
            "Fix: engine.dtype=fp16, or another gpu="
        )
    return peak


# ---- rates

SHORTEST_S = 2.5e-6  # a kernel that has next to nothing to do
PER_NODE = 8  # GPUs
OF_LINKS = 0.75  # share of their data sheet that collectives reach: assumed


@dataclass(frozen=True)
class Rates:
    """What a GPU reaches of its data sheet."""

    gpu: str  # its name in GPUS
    bandwidth: float  # bytes/s
    elementwise: float  # share of the bandwidth
    products: float  # share of the peak
    attention: float  # share of the peak
    nvlink: float  # bytes/s
    network: float  # bytes/s

    @property
    def name(self) -> str:
        return self.gpu.split("_")[0].upper()

    def seconds(self, kernel: Operation) -> float:
        """Return the longer of moving its bytes and of computing its FLOPs."""
        if not kernel.flops:
            return max(kernel.nbytes / (self.bandwidth * self.elementwise), SHORTEST_S)
        share = self.attention if kernel.is_attention else self.products
        computing = kernel.flops / (_peak(self.gpu, kernel.dtype) * share)
        return max(kernel.nbytes / self.bandwidth, computing, SHORTEST_S)

    def moving(self, nbytes: float, n_kernels: int) -> float:
        """Return the seconds of kernels that compute next to nothing."""
        return max(nbytes / self.bandwidth, n_kernels * SHORTEST_S)

    def link(self, n_gpus: int) -> float:
        """Return the rate at which a GPU sends while all n_gpus take part [bytes/s]."""
        return OF_LINKS * (self.nvlink if n_gpus <= PER_NODE else min(self.nvlink, self.network))

    @property
    def text(self) -> str:
        """The rates in words."""
        tera = f"{self.bandwidth / 1e12:.2f} TB/s"
        shares = f"elementwise {self.elementwise:.0%} of it, products {self.products:.0%}"
        shares = f"{shares}, attention {self.attention:.0%}".replace("%", " %")
        links = f"links {OF_LINKS * self.nvlink / 1e9:.0f}, {OF_LINKS * self.network / 1e9:.0f} GB/s"
        return f"{self.name} {tera}, {shares}, {links}"


A100 = Rates("a100_80gb", 1.75e12, 1.0, 0.78, 0.60, 300e9, 200e9)
H100 = Rates("h100", 2.9e12, 0.55, 0.72, 0.58, 450e9, 400e9)
DATA_SHEET = {"a100_80gb": 2.039e12, "a100_40gb": 1.555e12, "h100": 3.35e12, "h200": 4.8e12}  # of memory, bytes/s


def _scaled(known: Rates, gpu: str) -> Rates:
    return replace(known, gpu=gpu, bandwidth=known.bandwidth / DATA_SHEET[known.gpu] * DATA_SHEET[gpu])


# The highest MFU of a training in bfloat16 that we know of, with causal attention counted as half of all pairs.
PUBLISHED = {
    "a100_80gb": (0.55, "TinyLlama 1.1B, 24,000 tokens/s a GPU"),
    "h100": (0.48, "nanochat d32, 51 % with all pairs counted"),
}
ON_PAGE = (A100, H100, _scaled(H100, "h200"))
RATES = {rates.gpu: rates for rates in (*ON_PAGE, _scaled(A100, "a100_40gb"))}


@cache
def _peak(gpu: str, dtype: torch.dtype) -> float:
    """Return the peak of the data sheet [FLOP/s]; of other dtypes (float64) that of float32."""
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    peak = gpu_peak(GPUS[gpu].device, name, tf32=False)
    assert peak is not None, "these GPUs have all of them"
    return peak.flops


def rates_of(gpu: Gpu) -> Rates | None:
    """Return the rates of a GPU; None: nothing is known of it."""
    return next((each for each in RATES.values() if GPUS[each.gpu].device == gpu.device), None)


# ---- the host
# One thread launches every kernel and does the engine's bookkeeping; where that takes longer than the device computes,
# it is the step. Measured by `python -m benchmarks.host` on one core of an AMD EPYC (torch 2.13, DeepSpeed 0.19.8):
# steps of models so narrow that computing is next to nothing. A launch on a GPU takes about as long as dispatching an
# operation there.

OPERATION_S = 13e-6  # of forward and backward, autograd's part included
AGAIN_S = 58e-6  # of what activation checkpointing runs again: it packs and unpacks every tensor that is kept


class Bookkeeping(NamedTuple):
    """The host's time of an engine for each trained tensor [s]."""

    micro_batch: float
    update: float
    gather: float = 0.0  # for each tensor, every time it is gathered


BOOKS = {  # by engine and ZeRO stage
    (LOCAL, 0): Bookkeeping(micro_batch=0.0, update=20e-6),
    (DEEPSPEED, 0): Bookkeeping(micro_batch=0.0, update=35e-6),
    (DEEPSPEED, 1): Bookkeeping(micro_batch=5e-6, update=70e-6),
    (DEEPSPEED, 2): Bookkeeping(micro_batch=50e-6, update=35e-6),
    (DEEPSPEED, 3): Bookkeeping(micro_batch=0.0, update=35e-6, gather=155e-6),
}


def host_seconds(
    engine: EngineConfig, *, operations: int, again: int, trained: int, tensors: int, micro_batches: int
) -> float:
    """Return the seconds of a step in one thread of the host.

    operations: of a micro batch, without those that are recomputed. again: those. trained, tensors: how many tensors
    are trained, and how many there are.
    """
    books = BOOKS[engine_and_stage(engine)]
    gatherings = 2 if engine.activation_checkpointing == "none" else 3  # forward, again, backward
    of_operations = operations * OPERATION_S + again * AGAIN_S
    of_tensors = trained * books.micro_batch + tensors * gatherings * books.gather
    return micro_batches * (of_operations + of_tensors) + trained * books.update
