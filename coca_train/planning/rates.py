"""What GPUs reach, as published, measured or assumed: the rates that a counted step is timed with.

Kernels: bandwidth, the share of it that elementwise operations reach, and the shares of the data sheet's FLOP/s that
matrix products and fused attention reach. Of the A100 they are published. Of Hopper bandwidth and products are, and an
H200 confirmed them (docs/gpu.md); attention (cuDNN's, which the engine puts first there; FlashAttention 2 reached 33 %)
and elementwise operations were measured on it. The H200 has the H100's chip: the same shares, and of its memory's
bandwidth the share that the H100 reaches of its own; so has the smaller A100. Links: assumed, what a collective reaches
of NVLink's data sheet (one direction) among 8 GPUs of a node, and beyond of the network cards of a DGX node together.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch

from coca_train.planning.fusion import Kernel
from coca_train.planning.gpus import GPUS, Gpu
from coca_train.tracking.throughput import gpu_peak

SHORTEST_S = 2.5e-6  # a kernel that has next to nothing to do
PER_NODE = 8  # GPUs
OF_LINKS = 0.75  # share of their data sheet that collectives reach: assumed


@dataclass(frozen=True)
class Rates:
    """gpu: its name in gpus.py. bandwidth, nvlink, network: bytes/s. products, attention: shares of the peak.
    elementwise: share of the bandwidth."""

    gpu: str
    bandwidth: float
    elementwise: float
    products: float
    attention: float
    nvlink: float
    network: float

    @property
    def name(self) -> str:
        return self.gpu.split("_")[0].upper()

    def seconds(self, kernel: Kernel) -> float:
        """The longer of moving its bytes and of computing its FLOPs."""
        if not kernel.flops:
            return max(kernel.nbytes / (self.bandwidth * self.elementwise), SHORTEST_S)
        share = self.attention if kernel.is_attention else self.products
        computing = kernel.flops / (_peak(self.gpu, kernel.dtype) * share)
        return max(kernel.nbytes / self.bandwidth, computing, SHORTEST_S)

    def moving(self, nbytes: float, n_kernels: int) -> float:
        """Seconds of kernels that compute next to nothing."""
        return max(nbytes / self.bandwidth, n_kernels * SHORTEST_S)

    def link(self, n_gpus: int) -> float:
        """What a GPU sends while all n_gpus take part [bytes/s]."""
        return OF_LINKS * (self.nvlink if n_gpus <= PER_NODE else min(self.nvlink, self.network))

    @property
    def text(self) -> str:
        """All of it, to be printed."""
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


@dataclass(frozen=True)
class Published:
    """The highest MFU of a training in bfloat16 that we know of, with causal attention counted as half of all pairs."""

    mfu: float
    training: str


PUBLISHED = {
    "a100_80gb": Published(0.55, "TinyLlama 1.1B, 24,000 tokens/s a GPU"),
    "h100": Published(0.48, "nanochat d32, 51 % with all pairs counted"),
}
ON_PAGE = (A100, H100, _scaled(H100, "h200"))
RATES = {rates.gpu: rates for rates in (*ON_PAGE, _scaled(A100, "a100_40gb"))}


@cache
def _peak(gpu: str, dtype: torch.dtype) -> float:
    """Of the data sheet [FLOP/s]; what has no rate of its own (float64) at that of float32."""
    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    peak = gpu_peak(GPUS[gpu].device, name, tf32=False)
    assert peak is not None, "these GPUs have all of them"
    return peak.flops


def rates_of(gpu: Gpu) -> Rates | None:
    """Of a GPU by its device; None: nothing is known of it."""
    return next((each for each in RATES.values() if GPUS[each.gpu].device == gpu.device), None)
