"""Documents out of .parquet: one row a document, only the columns that are needed.

A chunk is record batches as an Arrow stream. A batch holds so many rows as fill an eighth of a chunk on the average of
their row group (all its columns), so batches depend on the file's footer alone. Cursor: {"row": number of the next row,
"group": its row group, "offset": its place in the group}.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import base
from coca_train.data.readers.base import Chunk, Cursor, Document, Input, Reject, escape, excerpt
from coca_train.data.readers.files import Watched
from coca_train.runtime.errors import DataError

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch, Schema
    from pyarrow.parquet import ParquetFile

START = {"row": 1, "group": 0, "offset": 0}
BATCHES_PER_CHUNK = 8
READ_BYTES = 1 << 20


def _pyarrow() -> ModuleType:
    with base.package_needed("pyarrow", ".parquet files"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def chunks(input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: Cursor | None) -> Iterator[Chunk[bytes]]:
    """Yield batches of rows, about work.chunk_bytes of text. Raises as `readers.chunks` says, and E-RAW-06."""
    after = dict(cursor or START)
    arrow = _pyarrow()
    watched = Watched(input.path, input.size)
    if not input.size:
        raise base.no_documents(input.path, "0 bytes")
    try:
        with arrow.parquet.ParquetFile(
            input.path, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            columns = _columns(file.schema_arrow, source, input.path)
            if not (n_rows := file.metadata.num_rows):
                raise base.no_documents(input.path, f"{file.metadata.num_row_groups} row groups, no rows")
            held: list[RecordBatch] = []
            n_bytes, first = 0, after["row"]
            for batch, end in _batches(file, columns, work, after, input.path):
                held.append(batch)
                n_bytes, after = n_bytes + batch.nbytes, end
                if n_bytes >= work.chunk_bytes:
                    watched.check()
                    yield _chunk(arrow, held, first, n_bytes, after, input.size / n_rows)
                    held, n_bytes, first = [], 0, after["row"]
            if held:
                yield _chunk(arrow, held, first, n_bytes, after, input.size / n_rows)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names of columns
        watched.check()
        if isinstance(error, OSError) and error.errno:
            base.raise_unreadable(input.path, error)
        words = escape(" ".join(str(error).split()))[:200]
        raise DataError(
            f"E-RAW-14 {escape(input.path)}:{after['row']}: damaged parquet ({words}). Fix: copy the file again"
        ) from error
    watched.check()


def _chunk(
    arrow: ModuleType, batches: "list[RecordBatch]", first: int, n_bytes: int, after: Cursor, bytes_a_row: float
) -> Chunk[bytes]:
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return Chunk(first, n_bytes, round((after["row"] - 1) * bytes_a_row), sink.getvalue().to_pybytes(), after)


def documents(
    path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk[bytes]
) -> Iterator[Document | Reject]:
    """Yield every row, in order."""
    row = chunk.first
    for batch in _pyarrow().ipc.open_stream(chunk.data):
        for record in _records(batch):
            if isinstance(record, UnicodeDecodeError):
                reason = f"invalid UTF-8 at byte {record.start} of a field; UTF-8 is needed"
                yield Reject(row, None, "E-RAW-10", reason, excerpt(record.object[max(0, record.start - 40) :]))
            else:
                yield base.row_document(row, record, source, work)
            row += 1


def needed(source: CorpusSourceConfig) -> list[str]:
    """Return the dotted fields a source is read for: text, id, and what its rules need."""
    rules = source.filter
    optional = (source.id_field, source.join_field, rules.language_field, rules.licence_field, rules.stars_field)
    return list(dict.fromkeys([source.text_field, *(name for name in optional if name is not None)]))


def _columns(schema: "Schema", source: CorpusSourceConfig, path: str) -> list[str]:
    """Return the needed columns that exist; text and id must exist and be text (id: or whole numbers), E-RAW-06."""
    from pyarrow import types

    columns = []
    for name in needed(source):
        kind: Schema | DataType | None = schema
        for key in name.split("."):
            index = kind.get_field_index(key) if kind is not None and hasattr(kind, "get_field_index") else -1
            kind = kind.field(index).type if kind is not None and index >= 0 else None
        if kind is not None:
            columns.append(name)
        if name not in (source.text_field, source.id_field):
            continue  # a rule whose field is missing counts the document as unknown
        plain = kind.value_type if kind is not None and types.is_dictionary(kind) else kind
        texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        allowed = texts if name == source.text_field else (*texts, types.is_integer)
        if plain is None or not any(is_kind(plain) for is_kind in allowed):
            keys = excerpt(", ".join(schema.names[:10]))
            what = f"no column '{name}' (its columns: {keys})" if kind is None else f"column '{name}' is {escape(kind)}"
            raise DataError(
                f"E-RAW-06 {escape(path)}: {what[:200]}; text is needed. Fix: set text_field or id_field to a column "
                "that holds text"
            )
    return columns


def _batches(
    file: "ParquetFile", columns: list[str], work: WorkConfig, start: Cursor, path: str
) -> "Iterator[tuple[RecordBatch, Cursor]]":
    """Yield (record batch, cursor after it) from a cursor on; DataError E-RAW-26 beyond the end."""
    groups, row = file.metadata.num_row_groups, start["row"]
    stopped = f"and the cursor is row {row} (row group {start['group']}, offset {start['offset']})"
    if start["group"] > groups or (start["group"] == groups and start["offset"]):
        raise base.cursor_beyond(path, f"has {groups} row groups, {stopped}")
    for group in range(start["group"], groups):
        metadata = file.metadata.row_group(group)
        rows, offset = metadata.num_rows, start["offset"] if group == start["group"] else 0
        if offset > max(rows, 0):
            raise base.cursor_beyond(path, f"has {rows} rows in row group {group}, {stopped}")
        size = max(1, work.chunk_bytes * rows // (BATCHES_PER_CHUNK * max(metadata.total_byte_size, 1)))
        at = 0
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False):
            at += batch.num_rows
            if at > offset:
                row += batch.num_rows
                last = at == rows
                yield batch, {"row": row, "group": group + last, "offset": 0 if last else at}
        if at != rows:
            raise OSError(f"row group {group} has {at} rows, its footer says {rows}")


def _records(batch: "RecordBatch") -> Iterator[dict[str, object] | UnicodeDecodeError]:
    """Yield rows as Python objects; Arrow does not check UTF-8 before, so one bad row spoils its batch."""
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for i in range(batch.num_rows):
        try:
            yield batch.slice(i, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            yield error
