"""Documents out of .parquet: one row a document, only the columns that are needed.

A chunk is record batches as an Arrow stream. A batch holds so many rows as fill an eighth of a chunk on the average of
their row group (all its columns), so batches depend on the file's footer alone. Cursor: {"row": number of the next row,
"group": its row group, "offset": its place in the group}.
"""

from collections.abc import Iterator
from typing import Any

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers.base import (
    Chunk,
    Document,
    Input,
    Reader,
    Reject,
    escape,
    excerpt,
    raise_unreadable,
    row_document,
)
from coca_train.data.readers.files import Watched
from coca_train.runtime.errors import DataError, UserError

START = {"row": 1, "group": 0, "offset": 0}
BATCHES_PER_CHUNK = 8
READ_BYTES = 1 << 20


class Parquet(Reader):
    """Read one row a document."""

    def chunks(
        self, input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: dict | None
    ) -> Iterator[Chunk]:
        """Yield batches of rows, about work.chunk_bytes of text. Raises as `readers.chunks` says, and E-RAW-06."""
        after = dict(cursor or START)
        arrow, parquet = _pyarrow()
        watched = Watched(input.path, input.size)
        where = escape(input.path)
        try:
            if not input.size:
                raise _nothing(where, 0)
            with parquet.ParquetFile(
                input.path, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
            ) as file:
                columns = _columns(file.schema_arrow, source, where)
                if not file.metadata.num_rows:
                    raise _nothing(where, file.metadata.num_row_groups)
                held: list[Any] = []
                n_bytes, first = 0, after["row"]
                for batch, end in _batches(file, columns, work, after, where):
                    held.append(batch)
                    n_bytes += batch.nbytes
                    after = end
                    if n_bytes >= work.chunk_bytes:
                        watched.check()
                        yield _chunk(arrow, held, first, n_bytes, after, input, file)
                        held, n_bytes, first = [], 0, after["row"]
                if held:
                    yield _chunk(arrow, held, first, n_bytes, after, input, file)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names of columns
            watched.check()
            if isinstance(error, OSError) and error.errno:
                raise_unreadable(input.path, error)
            words = escape(" ".join(str(error).split()))[:200]
            raise DataError(
                f"E-RAW-14 {where}:{after['row']}: damaged parquet ({words}); an intact file is needed. "
                "Fix: copy the file again"
            ) from error
        watched.check()

    def documents(
        self, input_path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Chunk
    ) -> Iterator[Document | Reject]:
        """Yield every row, in order."""
        arrow, _ = _pyarrow()
        row = chunk.first
        for batch in arrow.ipc.open_stream(chunk.data):
            for record in _records(batch):
                if isinstance(record, UnicodeDecodeError):
                    reason = f"invalid UTF-8 at byte {record.start} of a field; UTF-8 is needed"
                    yield Reject(row, None, "E-RAW-10", reason, excerpt(record.object[max(0, record.start - 40) :]))
                else:
                    yield row_document(row, record, source, work)
                row += 1


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"E-RAW-25 pyarrow: cannot be imported ({error}); it reads .parquet files. "
            "Fix: pip install 'coca-train[data]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _nothing(where: str, groups: int) -> DataError:
    return DataError(
        f"E-RAW-03 {where}: holds no documents ({groups} row groups, no rows); at least one is needed. "
        "Fix: remove the file from the source"
    )


def needed(source: CorpusSourceConfig) -> list[str]:
    """Return the dotted fields a source is read for: text, id, and what its rules need."""
    rules = source.filter
    optional = (source.id_field, rules.language_field, rules.licence_field, rules.stars_field)
    return list(dict.fromkeys([source.text_field, *(name for name in optional if name is not None)]))


def _columns(schema: Any, source: CorpusSourceConfig, where: str) -> list[str]:
    """Return the needed columns that exist; text and id must exist and be text (id: or whole numbers), E-RAW-06."""
    from pyarrow import types

    columns = []
    for name in needed(source):
        kind = _type(schema, name)
        if kind is not None:
            columns.append(name)
        if name not in (source.text_field, source.id_field):
            continue  # a rule whose field is missing counts the document as unknown
        plain = kind.value_type if kind is not None and types.is_dictionary(kind) else kind
        texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        allowed = texts if name == source.text_field else (*texts, types.is_integer)
        if plain is not None and any(is_kind(plain) for is_kind in allowed):
            continue
        keys = excerpt(", ".join(schema.names[:10]))
        what = (
            f"no column '{name}' (its columns: {keys})" if kind is None else f"column '{name}' is {escape(kind)[:80]}"
        )
        raise DataError(
            f"E-RAW-06 {where}: {what}; text is needed. Fix: set text_field or id_field to a column that holds text"
        )
    return columns


def _type(schema: Any, dotted: str) -> Any:
    """Return the Arrow type of a dotted column; None when there is none."""
    fields: Any = schema
    kind = None
    for key in dotted.split("."):
        index = fields.get_field_index(key) if hasattr(fields, "get_field_index") else -1
        if index < 0:
            return None
        kind = fields.field(index).type
        fields = kind
    return kind


def _batches(
    file: Any, columns: list[str], work: WorkConfig, start: dict[str, int], where: str
) -> Iterator[tuple[Any, dict[str, int]]]:
    """Yield (record batch, cursor after it) from a cursor on; DataError E-RAW-26 beyond the end."""
    groups = file.metadata.num_row_groups
    row = start["row"]
    if start["group"] > groups or (start["group"] == groups and start["offset"]):
        raise _beyond(where, f"{groups} row groups", start)
    for group in range(start["group"], groups):
        rows = file.metadata.row_group(group).num_rows
        offset = start["offset"] if group == start["group"] else 0
        if offset > max(rows, 0):
            raise _beyond(where, f"{rows} rows in row group {group}", start)
        of_group = max(file.metadata.row_group(group).total_byte_size, 1)
        size = max(1, work.chunk_bytes * rows // (BATCHES_PER_CHUNK * of_group))
        at = 0
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=columns, use_threads=False):
            at += batch.num_rows
            if at <= offset:
                continue
            row += batch.num_rows
            last = at == rows
            yield batch, {"row": row, "group": group + last, "offset": 0 if last else at}
        if at != rows:
            raise OSError(f"row group {group} has {at} rows, its footer says {rows}")


def _beyond(where: str, what: str, start: dict[str, int]) -> DataError:
    return DataError(
        f"E-RAW-26 {where}: has {what}, but the earlier run stopped at row {start['row']} (row group {start['group']}, "
        f"offset {start['offset']}); the file it read is needed. Fix: bring that file back, or start again in another "
        "corpus.dir"
    )


def _chunk(
    arrow: Any, batches: list[Any], first: int, n_bytes: int, after: dict[str, int], input: Input, file: Any
) -> Chunk:
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    position = input.size * (after["row"] - 1) // file.metadata.num_rows
    return Chunk(first, n_bytes, position, sink.getvalue().to_pybytes(), after)


def _records(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
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
