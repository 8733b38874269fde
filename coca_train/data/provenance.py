"""Where a sample comes from: source, window, documents, and the line of the raw file each was read from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coca_train.config.errors import DataError
from coca_train.data.indexed import IndexedDataset


class Origin(NamedTuple):
    """A document before it was tokenized. input: the raw file or shard, as the manifest names it; line: from 1."""

    input: str
    line: int


class Part(NamedTuple):
    """Consecutive tokens of one document in a sample.

    at: where in the sample, from 0. token_start, token_stop: offsets in the .bin, as are document_start, where the
    document begins, and document_stop, behind its last token. origin: None when the dataset keeps none.
    """

    at: int
    document: int
    token_start: int
    token_stop: int
    document_start: int
    document_stop: int
    origin: Origin | None


@dataclass(frozen=True)
class Provenance:
    """Where a sample comes from. parts: in the order of its tokens, the last target included."""

    source: str
    epoch: int
    window: int
    parts: tuple[Part, ...]


class Origins:
    """`<prefix>.origins.npy`: for each document its input and line; the manifest beside it names the inputs.

    Raises DataError E-TOK-22 when it is not of this dataset.
    """

    def __init__(self, dataset: IndexedDataset) -> None:
        self.path = Path(f"{dataset.prefix}.origins.npy")
        self._rows = None
        if self.path.exists():
            self._rows = self._read(dataset.n_documents)
            self._inputs = self._names(self.path.name.removesuffix(".origins.npy"))

    def _read(self, n_documents: int) -> np.ndarray:
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
            if rows.shape == (n_documents,) and {"input", "line"} <= set(rows.dtype.names or ()):
                return rows
            what = f"{str(rows.dtype)[:80]} {rows.shape}"
        except (ValueError, EOFError, OSError) as error:
            what = repr(str(error))[:80]
        raise DataError(
            f"E-TOK-22 {self.path}: {what}; a row with input and line for each of {n_documents} documents is needed. "
            "Fix: copy it again, or remove it: documents are then shown without their origin"
        )

    def _names(self, dataset: str) -> list[str]:
        """Names of the inputs by their number; empty when no manifest tells."""
        try:
            manifest = json.loads(self.path.with_name("manifest.json").read_text(encoding="utf-8"))
            source = dataset.removesuffix("_train").removesuffix("_valid")
            return [_shown(input) for input in manifest["sources"][source]["inputs"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def of(self, document: int) -> Origin | None:
        """Where a document comes from."""
        if self._rows is None:
            return None
        number, line = int(self._rows["input"][document]), int(self._rows["line"][document])
        return Origin(self._inputs[number] if number < len(self._inputs) else f"input {number}", line)


def _shown(identity: dict[str, Any]) -> str:
    """A raw file, or a shard of a data set of the Hugging Face hub."""
    if "hub" in identity:
        return f"{identity['hub']}[{identity['split']}] shard {identity['shard']}"
    return str(identity["name"])
