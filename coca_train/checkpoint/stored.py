"""The tensors of a checkpoint in its open files: any part of any of them, wherever it lies."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.manifest import CUT, Checkpoint, Refused


class _Part(NamedTuple):
    """Elements [start, stop) of a tensor, which a file has under the tensor's name."""

    file: ShardReader
    start: int
    stop: int


class Stored:
    """A context manager, which closes the files. Raises Refused where they do not hold what the manifest says.

    verified: the manifest's entries whose bytes are looked at; None: all. spec: shapes by name.
    """

    def __init__(self, checkpoint: Checkpoint, verified: Sequence[int] | None = None) -> None:
        entries = checkpoint.manifest["files"]
        self._files: list[ShardReader] = []
        try:
            for entry in entries:
                self._files.append(manifest.open_shard(checkpoint.path, entry))
            looked_at = range(len(entries)) if verified is None else verified
            if reason := manifest.damage([self._files[i] for i in looked_at], [entries[i] for i in looked_at]):
                raise Refused(reason)
            self._parts = self._found(checkpoint)
        except Refused:
            self.close()
            raise

    def _found(self, checkpoint: Checkpoint) -> dict[str, list[_Part]]:
        """Where the parts of each tensor are."""
        cut = checkpoint.manifest.get(CUT, {})
        self.spec = {name: tuple(entry["shape"]) for name, entry in cut.items()}
        parts = {name: [_Part(self._files[i], *ends) for i, *ends in entry["parts"]] for name, entry in cut.items()}
        if reason := manifest.miscut(cut, dict(enumerate(self._files))):
            raise Refused(reason)
        for file in self._files:
            for name, shape in file.spec().items():
                if name not in cut:
                    self.spec[name], parts[name] = shape, [_Part(file, 0, math.prod(shape))]
        return parts

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor in the files."""
        return self._parts[name][0].file.dtypes()[name]

    def values(self, name: str, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of a tensor: flat, on the CPU, in the precision of the file. Raises OSError."""
        found = [
            part.file.values(name, max(start, part.start) - part.start, min(stop, part.stop) - part.start)
            for part in self._parts[name]
            if max(start, part.start) < min(stop, part.stop)
        ]
        return found[0] if len(found) == 1 else torch.cat([torch.zeros(0, dtype=self.dtype(name)), *found])

    def tensor(self, name: str) -> Tensor:
        """One CPU tensor, in the precision of the file. Raises OSError."""
        shape = self.spec[name]
        return self.values(name, 0, math.prod(shape)).view(shape)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
