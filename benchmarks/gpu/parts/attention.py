"""Attention of the schemes against RoPE's, forward and backward, by length."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.cases import KINDS, Setup
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.measure import interleaved_seconds, median_ratio

SCHEMES = ("coca", "coca_strict", "alibi")
NEAR_ROPE = 1.03  # CoCA's kernels are RoPE's: one product more


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    setup = Setup(scale.device, "bf16", attention_heads=16, attention_tokens=scale.pick(32768, 64))
    for length in scale.pick((512, 2048, 8192, 32768), (64,)):
        works = {name: KINDS["attention"](f"{name}/core/{length}", setup) for name in ("rope", *SCHEMES)}
        seconds = interleaved_seconds(works, setup, scale.pick(5, 1), at_least_s=scale.pick(0.3, 0.0))
        for name in SCHEMES:
            ratio, _, _ = median_ratio(seconds[name], seconds["rope"])
            what = f"{name}, attention core bf16, T = {length}: time as a share of RoPE's"
            if name.startswith("coca"):
                yield Figure("attention", what, ratio, "", high=NEAR_ROPE, by="its products")
            else:
                yield Figure("attention", what, ratio, "")
