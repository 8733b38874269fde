"""The weights of a checkpoint, as a model without adapters has them: the one place that adds LoRA's adapters in.

In a checkpoint of a LoRA stage `model/<layer>.weight` is the weight that the stage left as it was, and A and B stand
beside it. What reads it (the next stage, another run, generation, an export) reads W + (alpha / rank) B A here, in
float32, tensor by tensor. Only the stage itself, when it goes on, reads them apart.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.manifest import LORA, Checkpoint, Refused
from coca_train.engine.base import ReadTensor
from coca_train.models.lora import adapter_of, is_adapter, merge
from coca_train.runtime.errors import CheckpointError

MODEL = "model/"  # of the weights in a state
Spec = Mapping[str, tuple[int, ...]]


def plain(spec: Spec) -> dict[str, tuple[int, ...]]:
    """The weights of a state, without moments and adapters."""
    return {key: shape for key, shape in spec.items() if key.startswith(MODEL) and not is_adapter(key)}


def read_merged(key: str, checkpoint: Checkpoint, spec: Spec, read: ReadTensor) -> Tensor:
    """A weight of a checkpoint with its adapter added; as it is where it has none. spec: all that `read` can read."""
    weight, (a, b) = read(key), adapter_of(key)
    if a not in spec:
        return weight
    lora = checkpoint.manifest[LORA]
    return merge(weight, read(a), read(b), lora["alpha"] / lora["rank"])


class Weights:
    """The weights of a checkpoint in files that this process has opened; a context manager, which closes them.

    spec, adapters: shapes by parameter name. merged: False leaves adapters out, and the weights as the stage has them.
    """

    def __init__(self, checkpoint: Checkpoint, files: Sequence[ShardReader], merged: bool = True) -> None:
        self._checkpoint, self._files, self._merged = checkpoint, files, merged
        self._owner = {key: file for file in files for key in file.spec()}
        self._stored = {key: shape for file in files for key, shape in file.spec().items()}
        self.spec = {key.removeprefix(MODEL): shape for key, shape in plain(self._stored).items()}
        of_model = {key.removeprefix(MODEL): shape for key, shape in self._stored.items() if key.startswith(MODEL)}
        self.adapters = {name: shape for name, shape in of_model.items() if is_adapter(name)}

    def dtype(self, name: str) -> torch.dtype:
        """Of the tensor in the file; float32 is what adapters are added in."""
        return self._owner[MODEL + name].dtypes()[MODEL + name]

    def tensor(self, name: str) -> Tensor:
        """One CPU tensor. Raises OSError."""
        key = MODEL + name
        return read_merged(key, self._checkpoint, self._stored, self._read) if self._merged else self._read(key)

    def adapter(self, name: str) -> Tensor:
        """Half of an adapter, a CPU tensor. Raises OSError."""
        return self._read(MODEL + name)

    def _read(self, key: str) -> Tensor:
        return self._owner[key].tensor(key)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(checkpoint: Checkpoint, verified: bool = True) -> Weights:
    """The weights of a checkpoint, its bytes verified again unless verified=False. Not collective. Raises
    CheckpointError."""
    files: list[ShardReader] = []
    try:
        for entry in checkpoint.manifest["files"]:
            files.append(manifest.open_shard(checkpoint.path, entry, verified))
    except Refused as refusal:  # found good a moment ago
        for file in files:
            file.close()
        raise CheckpointError(f"E-CKP-01 {checkpoint.path}: {refusal}. Fix: restore the checkpoint") from None
    return Weights(checkpoint, files)


class Frozen:
    """Weights that a stage does not train, as they were when it began. Each rank reads for itself.

    An engine in low precision holds them rounded, and nothing behind it: a checkpoint written from that would not be
    what the stage began with. So they are read again from the checkpoint it began from, tensor by tensor, whenever the
    next one is written. (What is trained has float32 masters, which are saved.)

    resumed: the checkpoint is one of the stage itself, and its adapters are still apart; else they are merged.
    The files stay open, so that the checkpoint may be deleted meanwhile. A context manager. Raises OSError.
    """

    def __init__(self, checkpoint: Checkpoint, trainable: Iterable[str], resumed: bool) -> None:
        files = [ShardReader(checkpoint.path / entry["name"]) for entry in checkpoint.manifest["files"]]
        self._weights = Weights(checkpoint, files, merged=not resumed)
        self._names = self._weights.spec.keys() - set(trainable)

    def holds(self, key: str) -> bool:
        return key.startswith(MODEL) and key.removeprefix(MODEL) in self._names

    def tensor(self, key: str) -> Tensor:
        """One float32 CPU tensor."""
        return self._weights.tensor(key.removeprefix(MODEL)).float()

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(self, *_: object) -> None:
        self._weights.close()
