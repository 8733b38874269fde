"""Weights that a stage does not train, as they were when it began.

An engine in low precision holds them rounded, and nothing behind it: a checkpoint made from that would not be what the
stage began with. They are read again from the checkpoint it began from, tensor by tensor, when the next one is written.
"""

from collections.abc import Iterable

from torch import Tensor

from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.manifest import Found
from coca_train.checkpoint.weights import MODEL, Weights


class Frozen:
    """The weights of a verified checkpoint but for those that are trained. Each rank reads for itself.

    resumed: the checkpoint is one of the stage itself, and its adapters are still apart; else they are merged.
    The files stay open, so that the checkpoint may be deleted meanwhile. A context manager. Raises OSError.
    """

    def __init__(self, found: Found, trainable: Iterable[str], resumed: bool) -> None:
        files = [ShardReader(found.path / entry["name"]) for entry in found.manifest["files"]]
        self._weights = Weights(found, files, merged=not resumed)
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
