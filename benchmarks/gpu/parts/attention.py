"""Attention of the schemes against RoPE's, forward and backward, by length."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.cases import Setup
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.run import bench_attention

NEAR_ROPE = 1.03  # CoCA's kernels are RoPE's: one product more


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    setup = Setup(scale.device, "bf16", attention_heads=16, attention_tokens=scale.pick(32768, 64))
    lengths = scale.pick([512, 2048, 8192, 32768], [64])
    for row in bench_attention(setup, scale.pick(5, 1), ["coca", "coca_strict", "alibi"], "core", lengths):
        what = f"{row['who']}, {row['what']}: time as a share of RoPE's"
        if row["who"].startswith("coca"):
            yield Figure("attention", what, row["time_ratio"], "", high=NEAR_ROPE, by="its products")
        else:
            yield Figure("attention", what, row["time_ratio"], "")
