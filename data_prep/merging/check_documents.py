"""Whether token ids are in the vocabulary, and whether documents end where they should, block by block of a .bin."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coca_train.data.dataset import IndexedDataset


class Documents:
    """Each document ends with the end token and holds no other, and every id is below the size of the vocabulary.

    data: its index already checked, a sequence a document; None where there is none to go by: nothing is checked.
    fault: called with the first fault of each kind, E-TOK-09 (id) and E-TOK-21 (end), in words.
    """

    def __init__(self, data: IndexedDataset | None, manifest: dict[str, Any], fault: Callable[[str], None]) -> None:
        self._data, self._fault = data, fault
        self._eod = manifest["end_of_document"]
        self._vocab_size = manifest["tokenizer"]["vocab_size"]
        self._told: set[str] = set()

    def look(self, block: bytes, offset: int) -> None:
        """Check the ids of a block that begins at byte `offset` of the .bin."""
        if self._data is None:
            return
        first = offset // self._data.dtype.itemsize
        ids = np.frombuffer(block, self._data.dtype.newbyteorder("<"))
        beyond = np.flatnonzero((ids >= self._vocab_size) | (ids < 0))
        if beyond.size:
            what = f"id {ids[beyond[0]]}; the tokenizer has {self._vocab_size}. Fix: make the corpus again with it"
            self._tell("E-TOK-09", self._data, first + int(beyond[0]), what)
        ends = self._ends(self._data, first, first + len(ids))
        wrong = np.setxor1d(ends, np.flatnonzero(ids == self._eod) + first, assume_unique=True)
        if wrong.size:
            what = f"a document ends with id {self._eod} and holds it nowhere else. Fix: make the corpus again"
            self._tell("E-TOK-21", self._data, int(wrong[0]), what)

    def _ends(self, data: IndexedDataset, begin: int, end: int) -> np.ndarray:
        """int64: the last token of each document that ends in begin .. end - 1."""
        ends = data.document_starts(data.document_at(begin) + 1, data.document_at(end - 1) + 2) - 1
        return ends[(ends >= begin) & (ends < end)]

    def _tell(self, code: str, data: IndexedDataset, token: int, what: str) -> None:
        if code not in self._told:
            self._told.add(code)
            self._fault(f"{code} {data.bin_path} document {data.document_at(token)}, token {token} of the file: {what}")
