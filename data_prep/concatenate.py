"""Parts into one dataset: the kept token ranges of each part, one after the other, hashed on their way.

A dataset `<source>_<split>` is a .bin and an .idx (coca_train.data.dataset), `.origins.npy`, a row a document: where it
comes from and the digest of its text, and `.sums`: BLAKE2b-64 of each BLOCK_BYTES of the .bin, back to back.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import DTypeLike

from coca_train.data.dataset import BLOCK_BYTES, SUM_BYTES, write_index
from data_prep.collect import Part
from data_prep.duplicates import Stretch
from data_prep.parts import SPLITS, FileRecord, HashedFile, damaged, write_npy_header

ORIGINS = np.dtype([("input", "<u4"), ("line", "<u8"), ("digest", "V16")])
COPY_BYTES = 1 << 20
LENGTHS = 1 << 18  # read at a time
ENDS = (".bin", ".sums", ".origins.npy", ".idx")  # the order of publishing: a pair is whole when its .idx is there


class DatasetRecord(TypedDict):
    """What the manifest says of a dataset."""

    documents: int
    tokens: int
    characters: int
    bytes: int
    longest_document: int


class SumsWriter:
    """BLAKE2b-64 of each block of a stream, written as they become known."""

    def __init__(self, sums: HashedFile) -> None:
        self._sums, self._left = sums, BLOCK_BYTES
        self._hash = hashlib.blake2b(digest_size=SUM_BYTES)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            piece, view = view[: self._left], view[self._left :]
            self._hash.update(piece)
            self._left -= len(piece)
            if not self._left:
                self.finish()

    def finish(self) -> None:
        """Write the sum of the block begun, if it is not empty."""
        if self._left < BLOCK_BYTES:
            self._sums.write(self._hash.digest())
            self._hash, self._left = hashlib.blake2b(digest_size=SUM_BYTES), BLOCK_BYTES


class DatasetWriter:
    """Write the four files of one dataset, below `folder`; a context manager that closes them whatever happens.

    n_documents: known beforehand. After the block: `files`, the records for the manifest, and `counts`.
    """

    def __init__(self, folder: Path, name: str, dtype: DTypeLike, n_documents: int) -> None:
        self.name, self.dtype, self.n_documents = name, np.dtype(dtype), n_documents
        self.counts: DatasetRecord = {"documents": 0, "tokens": 0, "characters": 0, "bytes": 0, "longest_document": 0}
        self.files: dict[str, FileRecord] = {}
        self._folder, self._lengths_path = folder, folder / f"{name}.lengths"

    def __enter__(self) -> "DatasetWriter":
        self._open = {end: HashedFile(self._folder / f"{self.name}{end}") for end in ENDS}
        self._lengths = open(self._lengths_path, "wb")
        self._sums = SumsWriter(self._open[".sums"])
        write_npy_header(self._open[".origins.npy"], ORIGINS, self.n_documents)
        return self

    def write_tokens(self, data: bytes) -> None:
        self._open[".bin"].write(data)
        self._sums.write(data)

    def add(self, input: int, documents: np.ndarray) -> None:
        """Append the rows of the documents (DOCS) whose tokens were written last."""
        origins = np.empty(len(documents), ORIGINS)
        origins["input"], origins["line"], origins["digest"] = input, documents["line"], documents["digest"]
        self._open[".origins.npy"].write(origins.tobytes())
        self._lengths.write(documents["tokens"].astype("<i4").tobytes())
        self.counts["documents"] += len(documents)
        self.counts["tokens"] += int(documents["tokens"].sum(dtype=np.int64))
        self.counts["characters"] += int(documents["characters"].sum(dtype=np.int64))
        self.counts["bytes"] += int(documents["bytes"].sum(dtype=np.int64))
        self.counts["longest_document"] = max(self.counts["longest_document"], int(documents["tokens"].max(initial=0)))

    def _stored_lengths(self) -> Iterator[np.ndarray]:
        with open(self._lengths_path, "rb") as file:
            while len(lengths := np.frombuffer(file.read(4 * LENGTHS), "<i4")):
                yield lengths

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                assert self.counts["documents"] == self.n_documents, (self.counts, self.n_documents)
                self._sums.finish()
                self._lengths.close()
                write_index(self._open[".idx"], self.dtype, self.n_documents, self._stored_lengths)
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            self._lengths.close()
            for end, file in self._open.items():
                self.files[f"{self.name}{end}"] = file.close(keep=kind is None)
            self._lengths_path.unlink()


class _PartTokens:
    """The .bin of one split of a part, read once; its SHA-256 is checked at the end."""

    def __init__(self, part: Part, split: str) -> None:
        self.part, self.name, self.n_bytes = part, f"{part.stem.name}.{split}.bin", 0
        self._file = open(f"{part.stem}.{split}.bin", "rb")  # noqa: SIM115 (closed by close)
        self._sha = hashlib.sha256()

    def take(self, n_bytes: int, target: DatasetWriter | None) -> None:
        """Copy the next bytes, or skip them."""
        self.n_bytes += n_bytes
        while n_bytes:
            data = self._file.read(min(n_bytes, COPY_BYTES))
            if not data:
                raise damaged(self.part.stem, f"{self.name} holds fewer tokens than its documents")
            self._sha.update(data)
            if target is not None:
                target.write_tokens(data)
            n_bytes -= len(data)

    def digest(self) -> str:
        return self._sha.hexdigest()

    def close(self) -> None:
        self._file.close()


def copy_part(
    part: Part, kept: Iterable[tuple[Stretch, np.ndarray]], item_bytes: int, targets: dict[str, DatasetWriter]
) -> None:
    """Copy the kept documents of a part into the datasets of their splits.

    kept: the stretches of the part, and for each bool (n,) which documents stay. targets: by split; a split without
    documents in the whole source has none. Raises DataError E-TOK-08 where a part is not what was written.
    """
    sources = {split: _PartTokens(part, split) for split in SPLITS}
    try:
        for stretch, keep in kept:
            for number, split in enumerate(SPLITS):
                of_split = stretch.documents["split"] == number
                documents, stays = stretch.documents[of_split], keep[of_split]
                if len(documents):
                    # Neighbours that share a fate go in one piece. What is skipped is read too: the SHA-256 is that of
                    # the whole file.
                    begins = np.concatenate(([0], np.flatnonzero(np.diff(stays)) + 1))
                    sizes = np.add.reduceat(documents["tokens"].astype(np.int64) * item_bytes, begins)
                    for begin, size in zip(begins, sizes, strict=True):
                        sources[split].take(int(size), targets.get(split) if stays[begin] else None)
                if split in targets:
                    targets[split].add(part.input.number, documents[stays])
        files = part.record["files"]
        for source in sources.values():
            if (source.n_bytes, source.digest()) != (files[source.name]["bytes"], files[source.name]["sha256"]):
                raise damaged(part.stem, f"{source.name} is not what was written (SHA-256)")
    finally:
        for source in sources.values():
            source.close()
