"""Micro batches of the 7B recipes, without engine and optimizer: time and memory against what plan counts."""

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.alone import Alone
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale

# By length: recipe -> sequences of a micro batch.
RECIPES = {
    2048: {"coca_llama_7b": 8},
    32768: {"coca_pi_llama_7b_32k": 1, "pi_llama_7b_32k": 1},
    65536: {"yarn_llama2_7b_64k": 1},
}
# The long recipes share a sequence between GPUs. One GPU has it whole, and the room for it only with every block's
# activations computed again.
WHOLE = ("engine.sequence_parallel=1", "engine.activation_checkpointing=full")


def run(scale: Scale, folder: Path, seq_len: int) -> Iterator[Figure]:
    for recipe, rows in RECIPES[seq_len].items():
        changed = WHOLE if seq_len > 2048 else ()
        alone = Alone(scale.words(f"+experiment={recipe}", *changed), rows, scale)
        try:
            yield from alone.figures(f"large_{seq_len // 1024}k", scale.pick(2, 1))
        except torch.OutOfMemoryError:
            what, by = f"{alone.name}: ran out of memory", "plan, which says that it fits"
            yield Figure(f"large_{seq_len // 1024}k", what, 1, "", high=0, by=by)
        del alone
        gc.collect()
        torch.cuda.empty_cache()
