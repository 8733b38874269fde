"""Speed and memory of a run: tokens per second, model FLOPs utilisation (MFU) against a stated peak, peak memory.

MFU = FLOPs per token x tokens per second / peak FLOPs per second (Chowdhery et al., PaLM, arXiv 2204.02311, appendix
B). Only what the model needs is counted: recomputed activations are not, so activation checkpointing lowers MFU, it
never flatters it.
"""

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

TERA = 1e12
MIB = 2**20
MIN_CALLS = 5  # of the measured peak, on a machine too busy to make them in time

# Dense peaks [TFLOP/s], no structured sparsity, float32 accumulation, from NVIDIA's data sheets.
# First match in order; "fp32" is the plain float32 pipeline, "tf32" the tensor cores' float32 mode.
GPU_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("B200", {"bf16": 2250.0, "fp16": 2250.0, "tf32": 1125.0, "fp32": 75.0}),
    ("GH200", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H200 NVL", {"bf16": 835.5, "fp16": 835.5, "tf32": 417.7, "fp32": 60.3}),
    ("H200", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("H100 NVL", {"bf16": 835.5, "fp16": 835.5, "tf32": 417.7, "fp32": 60.0}),
    ("H100 PCIe", {"bf16": 756.5, "fp16": 756.5, "tf32": 378.0, "fp32": 51.2}),
    ("H100", {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}),
    ("A100", {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5}),
    ("L40S", {"bf16": 362.0, "fp16": 362.0, "tf32": 183.0, "fp32": 91.6}),
    ("A40", {"bf16": 149.7, "fp16": 149.7, "tf32": 74.8, "fp32": 37.4}),
    ("RTX A6000", {"bf16": 154.8, "fp16": 154.8, "tf32": 77.4, "fp32": 38.7}),
    ("RTX 4090", {"bf16": 165.2, "fp16": 165.2, "tf32": 82.6, "fp32": 82.6}),
    ("RTX 3090", {"bf16": 71.0, "fp16": 71.0, "tf32": 35.6, "fp32": 35.6}),
    ("V100S", {"fp16": 130.0, "fp32": 16.4}),
    ("V100-PCIE", {"fp16": 112.0, "fp32": 14.0}),
    ("V100", {"fp16": 125.0, "fp32": 15.7}),
    ("T4", {"fp16": 65.0, "fp32": 8.1}),
)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Peak(NamedTuple):
    """The rate that is an MFU of 100 %: `flops` [FLOP/s] of one device, and the source of the number."""

    flops: float
    source: str


def gpu_peak(name: str, dtype: str, tf32: bool) -> Peak | None:
    """Return the data-sheet peak of a GPU by its device name; None when it is not in the table.

    A MIG slice or a laptop's version has only a part of that rate, so it is not looked up.
    """
    if re.search(r"\b(MIG|Laptop)\b", name):
        return None
    key = "tf32" if dtype == "fp32" and tf32 else dtype
    for pattern, peaks in GPU_PEAKS:
        if re.search(rf"\b{pattern}\b", name) and key in peaks:
            return Peak(peaks[key] * TERA, f"{name}: {peaks[key]:g} TFLOP/s dense {key} (data sheet)")
    return None


def measured_peak(device: torch.device, dtype: str, seconds: float = 0.2, size: int = 1024) -> Peak:
    """Measure the best rate of a square matrix product, with torch's present number of threads."""
    a = torch.ones(size, size, device=device, dtype=DTYPES[dtype])
    out = a @ a  # the first call pays for set-up
    best, calls = float("inf"), 0
    end = time.perf_counter() + seconds
    # The best of many, not their mean: whatever else this machine does only ever makes a product slower.
    while calls < MIN_CALLS or time.perf_counter() < end:
        calls += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        torch.mm(a, a, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    flops = 2 * size**3 / best
    what = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return Peak(flops, f"{flops / TERA:.3g} TFLOP/s {dtype} (measured: {size} x {size} matrix product, {what})")


def peak(device: torch.device, dtype: str) -> Peak:
    """Return the peak of one device: from the table, else measured (about 0.2 s)."""
    if device.type == "cuda":
        tf32 = torch.get_float32_matmul_precision() != "highest"
        known = gpu_peak(torch.cuda.get_device_name(device), dtype, tf32)
        if known is not None:
            return known
    return measured_peak(device, dtype)


def flops_per_token(n_matmul: int, n_layers: float, attention_width: int, seq_len: int) -> float:
    """Return the FLOPs of forward and backward for one token: 6 N + 12 L (H D) T / 2.

    PaLM's formula (arXiv 2204.02311, appendix B) counts 12 L H D T for attention over all T keys.
    Here attention is causal and half of that work is never needed, so half of it is counted.
    attention_width: H D, query heads x head_dim. n_layers: a layer that sees a part of those pairs counts as that
    part of a layer. Documents masked from one another are counted
    as one sequence.
    """
    return 6.0 * n_matmul + 12.0 * n_layers * attention_width * seq_len / 2


class PeakMemory:
    """The most memory that this process has held since this object was created.

    On CUDA the memory of tensors, on CPU that of the process (weights, optimizer and Python included) as Linux counts
    it; where neither is known, nothing is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):  # where it is not allowed, the peak of the set-up stays in
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)

    def record(self) -> dict[str, float]:
        """Return peak_memory_mib, if known."""
        if self._device.type == "cuda":
            return {"peak_memory_mib": torch.cuda.max_memory_allocated(self._device) / MIB}
        with suppress(OSError):
            match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.M)
            return {"peak_memory_mib": int(match[1]) / 1024} if match else {}
        return {}


class Throughput:
    """Tokens per second and MFU since the last call of `recent`; the first step does not count (it includes set-up).

    add() takes the tokens of the GLOBAL batch and the seconds of the step alone, so validation and saving do not count.
    flops: per token. peak: of one device, None where it is not known. memory: of this rank.
    """

    def __init__(self, flops: float, peak: Peak | None, world_size: int, memory: PeakMemory) -> None:
        self.flops, self.peak, self.world_size, self.memory = flops, peak, world_size, memory
        self._warm = False
        self._tokens, self._seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if self._warm:
            self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        self._warm = True

    def recent(self) -> dict[str, float]:
        """Return tokens_per_s and mfu since the last call (not before the second step), peak_memory_mib so far."""
        rates = {}
        if self._seconds > 0:
            rate = self._tokens / self._seconds
            rates = {"tokens_per_s": rate}
            if self.peak is not None:
                rates["mfu"] = self.flops * rate / (self.peak.flops * self.world_size)
        self._tokens, self._seconds = 0, 0.0
        return rates | self.memory.record()
