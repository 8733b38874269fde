"""What every scheme and attention pattern takes in one layer, projections included, forward and backward: time as a
share of RoPE's, and memory as a multiple of it."""

from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.cases import KINDS, Setup, Work
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.measure import interleaved_seconds, median_ratio, say
from benchmarks.schemes import cases
from coca_train.catalog.entries import entries


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    """Raises RuntimeError at the end for what could not run."""
    setup, length = Setup(scale.device, "bf16", attention_heads=16), scale.pick(8192, 64)
    names = [
        name for name in cases(list(entries("position")), list(entries("attention_pattern"))) if "eager" not in name
    ]
    names.remove("rope")
    rope, failed = KINDS["scheme"](f"rope/{length}", setup), []
    rope_bytes = _peak_bytes(rope)
    for name in scale.pick(names, ["coca", "rope:dilated"]):
        try:
            work = KINDS["scheme"](f"{name}/{length}", setup)
            peak_bytes = _peak_bytes(work)
            seconds = interleaved_seconds({"": work, "rope": rope}, setup, 3, at_least_s=scale.pick(0.1, 0.0))
        except RuntimeError as error:
            say(f"  {name}: {error}")
            failed.append(name)
            continue
        ratio, _, _ = median_ratio(seconds[""], seconds["rope"])
        yield Figure("schemes", f"{name}, T = {length}: time as a share of RoPE's", ratio, "")
        if rope_bytes:
            yield Figure(
                "schemes", f"{name}, T = {length}: memory as a multiple of RoPE's", peak_bytes / rope_bytes, ""
            )
    if failed:
        raise RuntimeError(f"could not run: {', '.join(failed)}")


def _peak_bytes(work: Work) -> int:
    """What it holds at most, above what is held now; 0 on a CPU. The first time it compiles."""
    work()
    if not torch.cuda.is_available():
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before
