"""Attention of the schemes against RoPE's, forward and backward, by length; and FlexAttention's blocks of our choice,
where there are any on this GPU, against torch's own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from benchmarks.cases import KINDS, Setup, Work
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.measure import interleaved_seconds, median_ratio
from coca_train.attention import flex

SCHEMES = ("coca", "coca_strict", "alibi")
NEAR_ROPE = 1.03  # CoCA's kernels are RoPE's: one product more
LOOKED_UP = ("t5", "kerple_log", "tupe")  # schemes whose terms FlexAttention looks up: tables, and products of queries


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
    for width in scale.pick((64, 128), (64,)) if scale.toy or _has_blocks() else ():
        yield from _blocks(scale, replace(setup, attention_head_dim=width), scale.pick(4096, 64))


def _has_blocks() -> bool:
    return flex.options(torch.empty(1, 1, 1, 64, device="cuda", dtype=torch.bfloat16), modifies=True) is not None


def _blocks(scale: Scale, setup: Setup, length: int) -> Iterator[Figure]:
    for name in LOOKED_UP:
        flex._compiled.cache_clear()  # schemes that share a kernel would come to torch's limit of recompilations
        ours = KINDS["attention"](f"{name}/core/{length}", setup)
        works = {"ours": ours, "torch": _by_torchs_blocks(ours)}
        seconds = interleaved_seconds(works, setup, scale.pick(5, 1), at_least_s=scale.pick(0.3, 0.0))
        ratio, _, _ = median_ratio(seconds["ours"], seconds["torch"])
        what = f"{name}, heads of {setup.attention_head_dim}, T = {length}: time as a share of that with torch's blocks"
        yield Figure("attention", what, ratio, "", high=1.0, by="nothing goes through memory")


def _by_torchs_blocks(work: Work) -> Work:
    def run() -> None:
        with mock.patch.object(flex, "options", return_value=None):
            work()

    return run
