"""Readers: documents out of .jsonl (plain, gzip, zstd), .parquet, text files, folders of these, data sets of the hub.

    for input in inputs("wiki", source):                   # sorted, checked: they exist, are readable, what they say
        for chunk in chunks(input, source, work, cursor):  # main process: cut, not parsed; a chunk can be pickled
            for document in documents(input.path, source, work, chunk):  # in a worker: parsed and checked
                ...                                        # Document, or Reject with its reason
            cursor = chunk.after                           # JSON: where to go on after a kill

A chunk's borders depend on the input and on work.chunk_bytes only, never on where reading began.
"""

from collections.abc import Iterator
from types import ModuleType

from data_prep.readers import files, folder, hub, jsonl, parquet, text
from data_prep.readers.base import Chunk, Document, Input, Reject
from data_prep.schema import CorpusSourceConfig, WorkConfig

READERS = {"jsonl": jsonl, "parquet": parquet, "text": text, "hub": hub}


def _reader(source: CorpusSourceConfig, path: str) -> ModuleType:
    """Of an input of the source."""
    return READERS[folder.kind_of_input(path) if source.kind == "folder" else source.kind]


def inputs(name: str, source: CorpusSourceConfig) -> list[Input]:
    """The inputs of a source, sorted, numbered from 0.

    Raises DataError E-RAW-01 nothing there, 02 not a readable regular file, 15 not what its name says, 17 an archive,
    20 the same file twice; E-RAW-24 a data set that cannot be had; UserError E-RAW-25 a package that is missing.
    """
    if source.kind == "folder":
        return files.checked(name, folder.inputs(name, source.files))
    return hub.inputs(name, source) if source.kind == "hub" else files.inputs(name, source)


def chunks(input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: dict | None) -> Iterator[Chunk]:
    """Chunks of about work.chunk_bytes from a cursor (None: the beginning) on; for the main process.

    Raises DataError E-RAW-03 no document in the whole input, 14 damaged, 16 a decompression bomb, 19 changed while
    read, 26 the cursor lies beyond the end, and what a reader adds.
    """
    return _reader(source, input.path).chunks(input, source, work, cursor)


def documents(
    input_path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk
) -> Iterator[Document | Reject]:
    """The documents of a chunk in order, bad ones as Rejects; blank lines are passed over. For a worker."""
    return _reader(source, input_path).documents(input_path, source, work, chunk)
