"""What the files next to a dataset say of its origin: manifest.json, and the raw file and line of each document."""

import os
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np

from coca_train.data.dataset import IndexedDataset
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import read_at
from coca_train.runtime.errors import DataError

MANIFEST = "manifest.json"
KIND = "corpus"  # of manifests that data_prep writes; what has another is another tool's


class TokenizerRecord(TypedDict):
    """What is read of a manifest's tokenizer."""

    sha256: str


class SourceRecord(TypedDict):
    """What is read of a manifest's source. inputs: `readers.base.Input.identity` of each."""

    licence: NotRequired[str]
    inputs: list[dict[str, object]]


class Manifest(TypedDict):
    """What is read here of a manifest; data_prep.manifest has all of it."""

    kind: str
    tokenizer: TokenizerRecord
    sources: NotRequired[dict[str, SourceRecord]]


def read_manifest(prefix: Path | str) -> Manifest | None:
    """Read the manifest in the folder of a dataset; None: data_prep did not make it, so nothing is known of its origin.

    Raises DataError E-TOK-08 for one that cannot be read, or lacks what data_prep writes.
    """
    path = Path(prefix).parent / MANIFEST
    try:
        found = untrusted_io.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        return None
    tokenizer, sources = found.get("tokenizer"), found.get("sources", {})
    good = {
        "tokenizer": isinstance(tokenizer, dict) and isinstance(tokenizer.get("sha256"), str),
        "sources": isinstance(sources, dict) and all(map(_lists_inputs, sources.values())),
    }
    for name, is_good in good.items():
        if not is_good:
            raise _damaged(path, f"has no {name} as data_prep writes it")
    return Manifest(**found)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"E-TOK-08 {path}: {what}. Fix: copy it again, or remove it where it is not of these data")


def _lists_inputs(source: object) -> bool:
    inputs = source.get("inputs") if isinstance(source, dict) else None
    return isinstance(inputs, list) and all(
        isinstance(one, dict) and one.keys() >= ({"hub", "split", "shard"} if "hub" in one else {"name"})
        for one in inputs
    )


FILE = ", file "


class Origin(NamedTuple):
    """A document before it was tokenized.

    input: the raw file, folder or shard, as the manifest names it. line: from 1. unit: what `line` counts, with what
    surrounds it: ":" lines of a file, FILE files of a folder, ", row " rows of a shard. n_files: of the folder.
    """

    input: str
    line: int
    unit: str = ":"
    n_files: int = 0

    def __str__(self) -> str:
        return f"{self.input}{self.unit}{self.line}"


class Passage(NamedTuple):
    """Consecutive tokens of one document in a sample.

    at: where in the sample, from 0. token_start, token_stop: offsets in the .bin, as are document_start, where the
    document begins, and document_stop, after its last token. origin: None when the dataset keeps none.
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
    parts: tuple[Passage, ...]


class NpyRows:
    """The rows of an .npy file of version 1.0, read on demand. Raises OSError and ValueError.

    Not mapped: when somebody truncates a mapped file, the process dies without a word.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(untrusted_io.open_file(path), "rb", buffering=0)
        version = np.lib.format.read_magic(self._file)
        if version != (1, 0):
            raise ValueError(f"an .npy file of version {version}; 1.0 is needed")
        try:
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(self._file)
        except (tokenize.TokenError, SyntaxError, TypeError) as error:  # numpy reads it as Python does its sources
            raise ValueError(f"its header cannot be parsed ({error})") from error
        if self.dtype.hasobject:
            raise ValueError(f"Python objects in dtype {self.dtype}, which only a pickle has")
        self._first = self._file.tell()

    def part(self, first: int, stop: int) -> np.ndarray:
        """Return rows first .. stop - 1."""
        size = self.dtype.itemsize
        data = read_at(self._file.fileno(), self._first + first * size, (stop - first) * size)
        return np.frombuffer(data, self.dtype)

    def __getitem__(self, number: int) -> np.void:
        return self.part(number, number + 1)[0]


class Origins:
    """`<prefix>.origins.npy`: for each document its input and line; the manifest in its folder names the inputs.

    A dataset need not have one. Raises DataError E-TOK-22 when it is not of this dataset, E-TOK-08 when the manifest is
    damaged.
    """

    def __init__(self, dataset: IndexedDataset) -> None:
        self.path, self._rows = Path(f"{dataset.prefix}.origins.npy"), None
        if not self.path.exists():
            return
        n = dataset.n_documents
        try:
            self._rows = NpyRows(self.path)
            what = f"{self._rows.dtype} {self._rows.shape}"
            good = self._rows.shape == (n,) and {"input", "line"} <= set(self._rows.dtype.names or ())
            if good and n:
                self._rows[n - 1]  # they are all there
        except (ValueError, EOFError, OSError) as error:
            good, what = False, repr(str(error))
        if not good:
            raise self._damaged(f"{what[:80]}; a row with input and line for each of {n} documents is needed")
        # By the number of an input its name, what its lines are and how many files it has; empty without a manifest.
        source = self.path.name.removesuffix(".origins.npy").removesuffix("_train").removesuffix("_valid")
        manifest = read_manifest(self.path)
        record = manifest.get("sources", {}).get(source) if manifest is not None else None
        self._inputs = [_name(input) for input in record["inputs"]] if record is not None else []

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"E-TOK-22 {self.path}: {what}. Fix: copy it again (python -m data_prep verify checks all files), or "
            "remove it: documents are then shown without their origin"
        )

    def find(self, document: int) -> Origin | None:
        """Return where a document comes from; None when the dataset does not say."""
        if self._rows is None:
            return None
        try:
            row = self._rows[document]
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from error
        number, line = int(row["input"]), int(row["line"])
        if not self._inputs:
            return Origin(f"input {number}", line)
        if number >= len(self._inputs):
            raise self._damaged(f"names input {number}; {self.path.with_name(MANIFEST)} has {len(self._inputs)}")
        name, unit, n_files = self._inputs[number]
        return Origin(name, line, unit, n_files)


def _name(identity: dict[str, object]) -> tuple[str, str, int]:
    """Return an input's name, the unit of its lines, and its number of files."""
    if "hub" in identity:
        return f"{identity['hub']}[{identity['split']}] shard {identity['shard']}", ", row ", 0
    n_files = int(str(identity.get("files", 0)))
    return str(identity["name"]), FILE if n_files else ":", n_files
