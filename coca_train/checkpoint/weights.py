"""The tensors of a checkpoint in its open files, and its weights with adapters merged.

In a checkpoint of a LoRA stage `model/<layer>.weight` is the weight that the stage did not change, and A and B are
separate tensors. What reads it (the next stage, another run, generation, an export) reads W + (alpha / rank) B A here,
in float32, tensor by tensor: this is the one place that merges adapters. Only the stage itself, when it continues,
reads them separately.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.manifest import CUT, LORA, Checkpoint, Refused, Spec
from coca_train.models.lora import adapter_of, is_adapter, merge
from coca_train.runtime.errors import CheckpointError

MODEL = "model/"  # of the weights in a state


class _Part(NamedTuple):
    """Elements [start, stop) of a tensor, which a file has under the tensor's name."""

    file: ShardReader
    start: int
    stop: int


class Stored:
    """The tensors of a checkpoint in its open files: a context manager, which closes them. Raises Refused where they do
    not hold what the manifest lists.

    verified: the manifest's entries whose bytes are verified; None: all. spec: shapes by name.
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
            self._parts = self._locate_parts(checkpoint)
        except Refused:
            self.close()
            raise

    def _locate_parts(self, checkpoint: Checkpoint) -> dict[str, list[_Part]]:
        """Return the places of the parts of each tensor."""
        cut = checkpoint.manifest.get(CUT, {})
        self.spec = {name: tuple(entry["shape"]) for name, entry in cut.items()}
        parts = {name: [_Part(self._files[i], *ends) for i, *ends in entry["parts"]] for name, entry in cut.items()}
        if reason := manifest.find_miscut(cut, dict(enumerate(self._files))):
            raise Refused(reason)
        for file in self._files:
            for name, shape in file.spec().items():
                if name not in cut:
                    self.spec[name], parts[name] = shape, [_Part(file, 0, math.prod(shape))]
        return parts

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor in the files."""
        return self._parts[name][0].file.dtypes()[name]

    def values(self, name: str, start: int, stop: int) -> Tensor:
        """Return the elements [start, stop) of a tensor: flat, on the CPU, in the precision of the file. Raises
        OSError."""
        pieces = [
            part.file.values(name, max(start, part.start) - part.start, min(stop, part.stop) - part.start)
            for part in self._parts[name]
            if max(start, part.start) < min(stop, part.stop)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat([torch.zeros(0, dtype=self.dtype(name)), *pieces])

    def tensor(self, name: str) -> Tensor:
        """Return one CPU tensor, in the precision of the file. Raises OSError."""
        shape = self.spec[name]
        return self.values(name, 0, math.prod(shape)).view(shape)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the weights of a state, without moments and adapters."""
    return {key: shape for key, shape in spec.items() if key.startswith(MODEL) and not is_adapter(key)}


def read_merged(key: str, checkpoint: Checkpoint, spec: Spec, read: Callable[[str], Tensor]) -> Tensor:
    """Return a weight of a checkpoint with its adapter merged, if it has one. spec: all tensors that `read` can
    read."""
    weight, (a, b) = read(key), adapter_of(key)
    if a not in spec:
        return weight
    lora = checkpoint.manifest[LORA]
    return merge(weight, read(a), read(b), lora["alpha"] / lora["rank"])


class Weights:
    """The weights of a checkpoint in files that this process has opened; a context manager, which closes them.

    spec, adapters: shapes by parameter name. merged: False leaves adapters out, and returns the weights as the stage
    has them.
    """

    def __init__(self, checkpoint: Checkpoint, stored: Stored, merged: bool = True) -> None:
        self._checkpoint, self._stored, self._merged = checkpoint, stored, merged
        self.spec = {key.removeprefix(MODEL): shape for key, shape in plain(stored.spec).items()}
        of_model = {key.removeprefix(MODEL): shape for key, shape in stored.spec.items() if key.startswith(MODEL)}
        self.adapters = {name: shape for name, shape in of_model.items() if is_adapter(name)}

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the tensor in the file; float32 is what adapters are added in."""
        return self._stored.dtype(MODEL + name)

    def tensor(self, name: str) -> Tensor:
        """Return one CPU tensor. Raises OSError."""
        key = MODEL + name
        if not self._merged:
            return self._stored.tensor(key)
        return read_merged(key, self._checkpoint, self._stored.spec, self._stored.tensor)

    def values(self, name: str, start: int, stop: int) -> Tensor:
        """Return the elements [start, stop) of one tensor, flat. Raises OSError."""
        if self._merged and adapter_of(MODEL + name)[0] in self._stored.spec:
            return self.tensor(name).flatten()[start:stop]
        return self._stored.values(MODEL + name, start, stop)

    def adapter(self, name: str) -> Tensor:
        """Return half of an adapter, a CPU tensor. Raises OSError."""
        return self._stored.tensor(MODEL + name)

    def close(self) -> None:
        self._stored.close()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(checkpoint: Checkpoint, verified: bool = True, merged: bool = True) -> Weights:
    """Open the weights of a checkpoint and verify its bytes again, unless verified=False. Not collective. merged: as of
    `Weights`. Raises CheckpointError."""
    try:
        return Weights(checkpoint, Stored(checkpoint, None if verified else ()), merged)
    except Refused as refusal:  # it was verified a moment ago
        raise CheckpointError(f"E-CKP-01 {checkpoint.path}: {refusal}. Fix: restore the checkpoint") from None


class Frozen:
    """Weights that a stage does not train, with their values of its beginning. Each rank reads them itself.

    An engine in low precision holds them rounded, without a float32 master: a checkpoint written from that would differ
    from what the stage began with. So they are read again from the checkpoint it began from, part by part, whenever the
    next one is written. (Trained weights have float32 masters, which are saved.)

    resumed: the checkpoint is one of the stage itself, and its adapters are still separate; else they are merged. The
    files stay open, so that the checkpoint may be deleted meanwhile. A context manager. Raises Refused and OSError.
    """

    def __init__(self, checkpoint: Checkpoint, trainable: Iterable[str], resumed: bool) -> None:
        self._weights = Weights(checkpoint, Stored(checkpoint, ()), merged=not resumed)
        self._names = self._weights.spec.keys() - set(trainable)

    def holds(self, key: str) -> bool:
        return key.startswith(MODEL) and key.removeprefix(MODEL) in self._names

    def values(self, key: str, start: int, stop: int) -> Tensor:
        """Return the elements [start, stop) of one tensor: flat, float32, on the CPU. From any thread."""
        return self._weights.values(key.removeprefix(MODEL), start, stop).float()

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(self, *_: object) -> None:
        self._weights.close()
