"""Data sets of the Hugging Face hub, or local folders that `datasets` can load: streamed, one input a shard.

The main process iterates, because that is where the network is; a chunk is a list of records with the needed fields
only. Code of a data set is never run. Cursor: {"row": number of the next record of the shard}.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import base
from coca_train.data.readers.base import Chunk, Cursor, Document, Input, Reject, escape, excerpt
from coca_train.data.readers.parquet import needed
from coca_train.runtime.errors import DataError, UserError

if TYPE_CHECKING:
    from datasets import IterableDataset

Record = dict[str, object]


def inputs(name: str, source: CorpusSourceConfig) -> list[Input]:
    """Return one input a shard. Raises DataError E-RAW-24 (cannot be opened), 32 (it needs code), UserError E-RAW-25
    (`datasets` is missing)."""
    if not source.hub:
        raise DataError(
            f"E-RAW-01 {name}: hub is empty; the name of a data set or a local folder is needed. "
            f"About it: {escape(source.about) or 'nothing known'}. Fix: set corpus.sources.{name}.hub"
        )
    data, fingerprint = _open(source)
    label = source.hub + (f"/{source.hub_config}" if source.hub_config else "")
    hub: dict[str, object] = {"hub": source.hub, "config": source.hub_config, "split": source.hub_split}
    hub |= {"fingerprint": fingerprint} | ({"files": source.hub_files} if source.hub_files else {})
    shards = []
    for shard in range(data.num_shards):
        path = f"{label}[{source.hub_split}] shard {shard}/{data.num_shards}"
        record = hub | {"shard": shard, "shards": data.num_shards}
        shards.append(Input(name, shard, path, 0, hub=tuple(record.items())))
    return shards


def _open(source: CorpusSourceConfig) -> "tuple[IterableDataset, str]":
    """Open the streamed data set; return it with its fingerprint (hash of the revision and of the list of files)."""
    name = source.hub or ""
    folder = Path(name)
    script = folder if folder.suffix == ".py" else folder / f"{folder.absolute().name}.py"
    if script.is_file():
        raise DataError(
            f"E-RAW-32 {escape(str(script))}: is a loading script, and code of a data set is never run; its files in a "
            "plain format are needed (.jsonl, .parquet, ...). Fix: give a folder of these without the script"
        )
    try:
        return _load(name, source.hub_config, source.hub_split, tuple(source.hub_files))
    except UserError:
        raise
    except Exception as error:  # `datasets` raises whatever its loaders and the network raise
        raise DataError(
            f"E-RAW-24 {escape(name)} (configuration {source.hub_config}, split {source.hub_split}): cannot be opened: "
            f"{_words(error)}. About it: {escape(source.about) or 'nothing known'}. Fix: check its name, its hub_files "
            "and the network; log in with `hf auth login` where consent is needed"
        ) from error


@functools.lru_cache(maxsize=4)
def _load(name: str, config: str | None, split: str, files: tuple[str, ...]) -> "tuple[IterableDataset, str]":
    with base.package_needed("datasets", "data sets of the hub"):
        import datasets
    builder = datasets.load_dataset_builder(name, config, data_files={split: list(files)} if files else None)
    data = builder.as_streaming_dataset(split=split)
    assert not isinstance(data, dict)  # which it is where no split is named
    return data, str(builder.hash)


def _words(error: Exception) -> str:
    words = escape(" ".join(f"{type(error).__name__}: {error}".split()))
    return words if len(words) <= 240 else words[:237] + "..."


def chunks(
    input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: Cursor | None
) -> Iterator[Chunk[list[Record]]]:
    """Yield records with about work.chunk_bytes of text together. Raises as `readers.chunks` says; E-RAW-06, 24."""
    first = row = cursor["row"] if cursor else 1
    data, _ = _open(source)
    names = data.column_names
    for name in (source.text_field, source.id_field):
        if names is not None and name is not None and name.split(".")[0] not in names:
            raise DataError(
                f"E-RAW-06 {escape(input.path)}: no field '{name}' (its fields: {excerpt(', '.join(names[:10]))}); it "
                "is needed. Fix: set text_field or id_field to a field that every record has"
            )
    columns = list(dict.fromkeys(name.split(".")[0] for name in needed(source)))
    held: list[Record] = []
    n_bytes = 0
    for record in _records(data, input, row):
        held.append({name: record[name] for name in columns if name in record})
        n_bytes += _text_bytes(held[-1], source.text_field)
        row += 1
        if n_bytes >= work.chunk_bytes:
            yield Chunk(first, n_bytes, 0, held, {"row": row})
            held, n_bytes, first = [], 0, row
    if held:
        yield Chunk(first, n_bytes, 0, held, {"row": row})
    if row == 1:
        raise base.no_documents(input.path, "no records", "check hub_split")


def documents(
    path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk[list[Record]]
) -> Iterator[Document | Reject]:
    """Yield every record, in order."""
    for row, record in enumerate(chunk.data, chunk.first):
        yield base.row_document(row, record, source, work)


def _records(data: "IterableDataset", input: Input, row: int) -> Iterator[Record]:
    """Yield the records of a shard from a row on. The one before it is read too: without it the cursor is wrong."""
    n_shards = dict(input.hub)["shards"]
    assert isinstance(n_shards, int)
    records = data.shard(n_shards, input.number)
    try:
        if row > 1:
            records = iter(records.skip(row - 2))
            if next(records, None) is None:
                raise base.cursor_beyond(input.path, f"has no record {row - 1}")
        for record in records:
            yield record
            row += 1
    except DataError:
        raise
    except Exception as error:  # `datasets` raises whatever its loaders and the network raise
        raise DataError(
            f"E-RAW-24 {escape(input.path)}:{row}: cannot be read on: {_words(error)}. Fix: run the same command "
            "again; if it stops at this record again, look at the data set"
        ) from error


def _text_bytes(record: Record, text_field: str) -> int:
    """Return the UTF-8 bytes of the text, and one for the record, so that records without text fill chunks too."""
    try:
        text = base.field(record, text_field)
    except KeyError:
        return 1
    return 1 + len(text.encode(errors="replace")) if isinstance(text, str) else 1
