"""A micro batch of the 350M recipes: the model alone, forward, loss and backward; blocks compiled or not."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.alone import Alone
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale

RECIPES = ("roformer_350m", "alibi_350m", "coca_350m")
MICRO_BATCH = 16


def run(scale: Scale, folder: Path, compiled: bool) -> Iterator[Figure]:
    for recipe in scale.pick(RECIPES, RECIPES[-1:]):
        alone = Alone(scale.words(f"+experiment={recipe}"), MICRO_BATCH, scale)
        yield from alone.figures("compiled" if compiled else "micro", scale.pick(8, 1), compiled)
