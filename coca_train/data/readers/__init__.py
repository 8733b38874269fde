"""Readers: documents from .jsonl (plain, gzip, zstd), .parquet, text files, folders of these, and data sets of the hub.

    for input in inputs("wiki", source):                   # sorted and checked: they exist and are what their names say
        for chunk in chunks(input, source, work, cursor):  # main process: cut, not parsed; a chunk can be pickled
            for document in documents(input.path, source, work, chunk):  # in a worker: parsed and checked
                ...                                        # Document, or Reject with its reason
            cursor = chunk.after                           # JSON: where to resume after a kill

A chunk's borders depend on the input and on work.chunk_bytes only, never on where reading began. Each reader is a
module with `chunks` and `documents`.
"""

from collections.abc import Iterator, Mapping
from types import ModuleType

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import files, hub, jsonl, parquet, text
from coca_train.data.readers.base import Chunk, Cursor, Document, Input, Reject

READERS: dict[str, ModuleType] = {"jsonl": jsonl, "parquet": parquet, "text": text, "hub": hub}


def _reader(source: CorpusSourceConfig, path: str) -> ModuleType:
    return READERS[files.kind_of_input(path) if source.kind == "folder" else source.kind]


def inputs(name: str, source: CorpusSourceConfig) -> list[Input]:
    """Return the inputs of a source, sorted and numbered from 0.

    Raises DataError E-RAW-01 nothing there, 02 not a readable regular file, 15 not what its name says, 17 an archive,
    20 the same file twice; E-RAW-24 a data set that cannot be opened; UserError E-RAW-25 a package that is missing.
    """
    if source.kind == "hub":
        return hub.inputs(name, source)
    return files.folder_inputs(name, source.files) if source.kind == "folder" else files.inputs(name, source)


def all_inputs(sources: Mapping[str, CorpusSourceConfig]) -> list[Input]:
    """Return the inputs of all sources; sources by name, so that every process of a job counts them alike."""
    return [input for name in sorted(sources) for input in inputs(name, sources[name])]


def chunks(input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: Cursor | None) -> Iterator[Chunk]:
    """Cut an input into chunks of about work.chunk_bytes, from a cursor (None: the beginning) on; for the main process.

    Raises DataError E-RAW-03 no document in the whole input, 14 damaged, 16 a decompression bomb, 19 changed while
    read, 26 the cursor lies beyond the end, and what a reader adds.
    """
    return _reader(source, input.path).chunks(input, source, work, cursor)


def documents(path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk) -> Iterator[Document | Reject]:
    """Parse the documents of a chunk in order, bad ones as Rejects; for a worker. path: of the input, for messages."""
    return _reader(source, path).documents(path, source, work, chunk)
