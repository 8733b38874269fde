"""Micro batches of the 7B recipes, without engine and optimizer: time and memory against what plan counts."""

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.alone import Alone
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale

# Recipe -> sequences of a micro batch.
RECIPES = {"coca_llama_7b": 8, "coca_pi_llama_7b_32k": 1, "pi_llama_7b_32k": 1, "yarn_llama2_7b_64k": 1}


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    for recipe, rows in RECIPES.items():
        alone = Alone(scale.words(f"+experiment={recipe}"), rows, scale)
        try:
            yield from alone.figures("large", scale.pick(2, 1))
        except torch.OutOfMemoryError:
            yield Figure("large", f"{alone.name}: ran out of memory", 1, "", high=0, by="plan, which says that it fits")
        del alone
        gc.collect()
        torch.cuda.empty_cache()
