"""A rank's shard, written from a copy of its part of the state by a thread that waits for no other rank."""

import math
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.checkpoint.format import ShardWriter
from coca_train.checkpoint.manifest import Spec
from coca_train.checkpoint.weights import Frozen
from coca_train.engine.base import Slice
from coca_train.runtime.untrusted_io import JsonObject

BLOCK = 1 << 24  # [elements] of memory that is taken at once: torch rounds pinned memory up to a power of two


class Part(NamedTuple):
    """Elements [start, stop) of a tensor of the state, copied. values: one piece after the other; None: they are read
    again from where the stage began."""

    name: str
    start: int
    stop: int
    values: list[Tensor] | None


def shard_shapes(parts: Iterable[Part], spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors as written in a shard: a part of a tensor is flat."""
    whole = {part.name: part.stop - part.start == math.prod(spec[part.name]) for part in parts}
    return {part.name: spec[part.name] if whole[part.name] else (part.stop - part.start,) for part in parts}


def elements_to_copy(slices: Iterable[Slice], frozen: Frozen | None) -> int:
    """Count the elements of the slices that a save copies; frozen ones are read again from their checkpoint."""
    return sum(len(values) for name, _, values in slices if frozen is None or not frozen.holds(name))


class HostCopy:
    """Memory for a copy of this rank's slices, in float32. Allocated once and kept: allocating it is slower than the
    copy."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._blocks = device, list[Tensor]()

    def reserve(self, n: int) -> None:
        """Allocate the memory for n elements. Raises as `take`."""
        if sum(map(len, self._blocks)) >= n:
            return
        self._blocks = self._blocks[: n // BLOCK]
        while (left := n - BLOCK * len(self._blocks)) > 0:  # all but the last are full
            block = torch.empty(min(BLOCK, left), dtype=torch.float32, pin_memory=self._device.type == "cuda")
            self._blocks.append(block.zero_())  # the machine gives memory when it is written to

    def take(self, slices: Iterable[Slice], frozen: Frozen | None) -> list[Part]:
        """Copy the slices over the copies before. Raises MemoryError, and RuntimeError as torch does."""
        slices, parts, used = list(slices), [], 0
        self.reserve(elements_to_copy(slices, frozen))
        for name, start, values in slices:
            copied = None
            if frozen is None or not frozen.holds(name):
                copied = list(self._pieces(used, len(values)))
                used += len(values)
                done = 0
                for block in copied:
                    block.copy_(values[done : done + len(block)], non_blocking=True)
                    done += len(block)
            parts.append(Part(name, start, start + len(values), copied))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # before the next step changes them
        return parts

    def _pieces(self, first: int, n: int) -> Iterable[Tensor]:
        """Yield n elements from number `first` on, as pieces of blocks."""
        while n:
            number, offset = divmod(first, BLOCK)
            piece = self._blocks[number][offset : offset + n]
            yield piece
            first, n = first + len(piece), n - len(piece)


def write_shard(
    path: Path, parts: list[Part], spec: Spec, identity: dict[str, str], frozen: Frozen | None, abandoned: Event
) -> JsonObject:
    """Write a shard and sync it; return its {bytes, sha256}. `frozen` stays open meanwhile. Raises OSError and
    NonFinite.

    spec: shapes of the whole tensors. abandoned: set where the shard is no longer needed.
    """
    writer = ShardWriter(path, shard_shapes(parts, spec), identity)
    try:
        for part in parts:
            if abandoned.is_set():
                return {}
            values = part.values
            if values is None:
                assert frozen is not None
                values = [frozen.values(part.name, part.start, part.stop)]
            writer.write(part.name, *values)
        return writer.finish()
    finally:
        writer.close()
