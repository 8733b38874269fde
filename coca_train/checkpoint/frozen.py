"""Weights that a stage does not train, as they were when it began.

An engine in low precision holds them rounded, and nothing behind it: a checkpoint made from that would not be what the
stage began with. They are read again from the checkpoint it began from, tensor by tensor, when the next one is written.
"""

from collections.abc import Iterable

from torch import Tensor

from coca_train.checkpoint.format import ShardReader
from coca_train.checkpoint.manifest import Found


class Frozen:
    """The weights of a verified checkpoint but for those that are trained. Each rank reads for itself.

    The files stay open, so that the checkpoint may be deleted meanwhile. A context manager. Raises OSError.
    """

    def __init__(self, found: Found, trainable: Iterable[str]) -> None:
        trained = {f"model/{name}" for name in trainable}
        self._files = [ShardReader(found.path / entry["name"]) for entry in found.manifest["files"]]
        self._owner = {
            key: file for file in self._files for key in file.spec() if key.startswith("model/") and key not in trained
        }

    def holds(self, key: str) -> bool:
        return key in self._owner

    def tensor(self, key: str) -> Tensor:
        """One float32 CPU tensor."""
        return self._owner[key].tensor(key).float()

    def __enter__(self) -> "Frozen":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()
