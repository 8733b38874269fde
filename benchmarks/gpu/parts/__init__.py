"""The parts of the hour, in the order in which they are worth their time. Each yields its figures as it knows them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.parts import attention, ceilings, exact, flex, large, losses, micro, saves
from benchmarks.gpu.scale import Scale

Run = Callable[[Scale, Path], Iterator[Figure]]


class Part(NamedTuple):
    """limit_s: after which it is ended; what it has told by then counts."""

    run: Run
    limit_s: int


# 40 minutes in all.
PARTS: dict[str, Part] = {
    "ceilings": Part(ceilings.run, 120),
    "losses": Part(losses.run, 300),
    "micro": Part(micro.run, 360),
    "saves": Part(saves.run, 360),
    "large": Part(large.run, 480),
    "flex": Part(flex.run, 300),
    "exact": Part(exact.run, 240),
    "attention": Part(attention.run, 240),
}
