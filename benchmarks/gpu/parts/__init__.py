"""The parts of the first hour: what is soon proved comes first, what takes long last. Each yields figures as it knows
them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.parts import attention, ceilings, exact, kernels, large, losses, masks, micro, saves, schemes
from benchmarks.gpu.scale import Scale

Run = Callable[[Scale, Path], Iterator[Figure]]


class Part(NamedTuple):
    """limit_s: after which it is ended; what it has told by then counts. holds: what it proves or measures."""

    run: Run
    limit_s: int
    holds: str


# None over nine minutes: a machine that is lent may allow ten for a command. An hour has room for all that end in half
# of their time; what finds none is named, to be run by itself.
PARTS: dict[str, Part] = {
    "masks": Part(masks.run, 120, "block masks by blocks, ALiBi folded into tensor cores against float64"),
    "exact": Part(exact.run, 480, "6 steps against 3 + 3 after a resume, to the bit"),
    "losses": Part(losses.run, 480, "the quickstart's first steps against those on this machine's CPU"),
    "kernels": Part(kernels.schemes, 540, "every scheme's kernel against the definition"),
    "attention_patterns": Part(
        kernels.attention_patterns, 540, "kernels of windows, sinks and so on against the definition"
    ),
    "score_options": Part(kernels.score_options, 300, "caps, sinks and scales of the scores against the definition"),
    "memory": Part(kernels.memory, 540, "no T x T at 32k"),
    "ceilings": Part(ceilings.run, 180, "what this GPU reaches at all, against the rates that plan assumes"),
    "micro": Part(partial(micro.run, compiled=False), 240, "a micro batch of the 350M recipes against plan"),
    "attention": Part(attention.run, 240, "attention of the schemes against RoPE's"),
    "schemes": Part(schemes.run, 480, "a layer of every scheme and attention pattern against RoPE's"),
    "saves": Part(saves.run, 480, "the 350M recipe in the engine: speed, and how long a save holds it up"),
    "large_2k": Part(partial(large.run, seq_len=2048), 300, "micro batches of 7B recipes at 2k against plan"),
    "large_32k": Part(partial(large.run, seq_len=32768), 420, "the same at 32k"),
    "large_64k": Part(partial(large.run, seq_len=65536), 300, "the same at 64k"),
    "compiled": Part(partial(micro.run, compiled=True), 540, "a micro batch of the 350M recipes with compiled blocks"),
}
