"""What this GPU reaches at all: products, copies, fused attention. The roofline's rates are held against it."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import milliseconds
from coca_train.tracking.throughput import gpu_peak

BY = "the rate that plan assumes"
PRODUCTS = (  # rows, columns, inner: square, a projection, an MLP, the output head by a small chunk and by a large one
    *((8192, 8192, 8192), (8192, 1024, 1024), (8192, 4096, 1024)),
    *((83, 100864, 1024), (2048, 100864, 1024), (16384, 11008, 4096)),
)
BACKENDS = {"FlashAttention": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    device, times, rates = scale.device, scale.pick(20, 1), scale.rates
    peak = gpu_peak(torch.cuda.get_device_name(), "bf16", tf32=False) if device == "cuda" else None
    for rows, columns, inner in scale.pick(PRODUCTS, ((16, 16, 16),)):
        x, w = (torch.randn(n, inner, device=device, dtype=torch.bfloat16) for n in (rows, columns))
        tera = 2e-9 * rows * columns * inner / milliseconds(lambda x=x, w=w: x @ w.T, device, times)
        low = rates.products * peak.flops / 1e12 if rates and peak and rows == columns == inner else None
        what = f"product {rows:,} x {columns:,} x {inner:,}"
        yield (
            Figure("ceilings", what, tera, "TFLOP/s")
            if low is None
            else Figure("ceilings", what, tera, "TFLOP/s", low=0.95 * low, by=BY)
        )
    source = torch.empty(scale.pick(1 << 31, 1 << 10), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    moved = 2e-9 * source.numel() / milliseconds(lambda to=target, of=source: to.copy_(of), device, times)
    yield (
        Figure("ceilings", "copy", moved, "TB/s")
        if rates is None
        else Figure("ceilings", "copy", moved, "TB/s", low=0.9 * rates.bandwidth / 1e12, by=BY)
    )
    source = target = torch.empty(0)  # the memory is needed
    n_tokens, heads = scale.pick((32768, 32), (64, 2))
    for name, backend in BACKENDS.items():
        q = torch.randn(1, heads, n_tokens, 128, device=device, dtype=torch.bfloat16, requires_grad=True)

        def both(q: torch.Tensor = q, backend: SDPBackend = backend) -> None:
            with sdpa_kernel([backend, SDPBackend.MATH] if device == "cpu" else backend):
                F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

        try:
            taken_ms = milliseconds(both, device, scale.pick(5, 1))
        except RuntimeError:  # not in this build, or not on this GPU: nothing to tell
            continue
        # Forward two products, backward five, of the half of all pairs that is seen.
        tera = 7e-9 * heads * n_tokens**2 * 128 / taken_ms
        low = rates.attention * peak.flops / 1e12 if rates and peak and name == "FlashAttention" else None
        what = f"{name}, {n_tokens:,} tokens, forward and backward"
        yield (
            Figure("ceilings", what, tera, "TFLOP/s")
            if low is None
            else Figure("ceilings", what, tera, "TFLOP/s", low=0.9 * low, by=BY)
        )
