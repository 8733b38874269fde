"""A rank's shard, from a copy of its part of the state, by a thread that waits for no other rank."""

import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coca_train.checkpoint.format import ShardWriter
from coca_train.checkpoint.weights import Frozen, Spec
from coca_train.engine.base import Slice

BLOCK = 1 << 24  # [elements] of memory that is taken at once: torch rounds pinned memory up to a power of two
ABANDON_S = 5.0  # for a thread to see that nobody wants its shard any more


class Part(NamedTuple):
    """Elements [start, stop) of a tensor of the state, copied. values: one piece after the other; None: they are read
    again from where the stage began."""

    name: str
    start: int
    stop: int
    values: list[Tensor] | None


def shapes(parts: Iterable[Part], spec: Spec) -> dict[str, tuple[int, ...]]:
    """Of tensors as they stand in a shard: what is not whole is flat."""
    whole = {part.name: part.stop - part.start == math.prod(spec[part.name]) for part in parts}
    return {part.name: spec[part.name] if whole[part.name] else (part.stop - part.start,) for part in parts}


class HostCopy:
    """Memory for a copy of this rank's slices, in float32. Taken once and kept: taking it is slower than the copy."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._blocks = device, list[Tensor]()

    def take(self, slices: Iterable[Slice], frozen: Frozen | None) -> list[Part]:
        """Copy them; what was copied before is overwritten. Raises MemoryError, and RuntimeError as torch does."""
        parts, used = [], 0
        for name, start, values in slices:
            copied = None
            if frozen is None or not frozen.holds(name):
                copied = list(self._room(used, len(values)))
                used += len(values)
                done = 0
                for block in copied:
                    block.copy_(values[done : done + len(block)], non_blocking=True)
                    done += len(block)
            parts.append(Part(name, start, start + len(values), copied))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # before the next step changes them
        return parts

    def _room(self, first: int, n: int) -> Iterable[Tensor]:
        """n elements from number `first` on, as pieces of blocks."""
        while n:
            number, offset = divmod(first, BLOCK)
            if number == len(self._blocks):
                pinned = self._device.type == "cuda"
                self._blocks.append(torch.empty(BLOCK, dtype=torch.float32, pin_memory=pinned))
            piece = self._blocks[number][offset : offset + n]
            yield piece
            first, n = first + len(piece), n - len(piece)


class Writing:
    """A shard that is being written: tensors, digest, sync. `frozen` stays open meanwhile.

    spec: the whole tensors that the parts are of. seconds: that it took, once it is done.
    """

    def __init__(
        self, path: Path, parts: list[Part], spec: Spec, identity: dict[str, str], frozen: Frozen | None
    ) -> None:
        self._path, self._parts, self._spec, self._identity, self._frozen = path, parts, spec, identity, frozen
        self._abandoned, self._record, self._error = False, dict[str, Any](), None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._record = self._write()
        except BaseException as error:  # told where it can be: in the main thread
            self._error = error
        self.seconds = time.monotonic() - began

    def _write(self) -> dict[str, Any]:
        writer = ShardWriter(self._path, shapes(self._parts, self._spec), self._identity)
        try:
            for part in self._parts:
                if self._abandoned:
                    return {}
                values = part.values
                if values is None:
                    assert self._frozen is not None
                    values = [self._frozen.values(part.name, part.start, part.stop)]
                writer.write(part.name, *values)
            return writer.finish()
        finally:
            writer.close()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> dict[str, Any]:
        """{bytes, sha256}, after a wait where it is not done. Raises what the thread did: OSError, NonFinite, and what
        says that memory ran out."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._record

    def abandon(self) -> None:
        """Nobody wants it any more."""
        self._abandoned = True
        self._thread.join(ABANDON_S)
