"""Documents out of .jsonl, .jsonl.gz and .jsonl.zst: one JSON object a line.

The main process only looks for line ends: a chunk is the bytes of whole lines. A worker splits, decodes and checks.
Cursor: {"line": of the next line, "byte": of the decompressed file, "found": 1 when a line before was not blank}.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import base
from coca_train.data.readers.base import BOM, Chunk, Cursor, Document, Input, Reject, escape, excerpt, kind_of
from coca_train.data.readers.files import HEAD_BYTES, Watched, compression, content, zstd_skippable
from coca_train.runtime.errors import DataError

# Decompression. The libraries' own file objects are not used: zstandard's stream reader takes a truncated file for a
# whole one, and gzip's hides how much it read.

BLOCK_BYTES = 1 << 20
ZSTD_FEED_BYTES = 1 << 10  # 4 bytes of zstd can become 128 KiB, and its decompressor has no limit: 32 MiB at most
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_HEADER_BYTES = 18
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_WINDOW_BYTES = 128 << 20
MAX_RATIO = 200
FREE_BYTES = 64 << 20


class Damaged(Exception):
    """A compressed file that cannot be read to its end; `str(error)` is the reason and what is needed."""

    def __init__(self, reason: str, code: str = "E-RAW-14", fix: str = "copy the file again") -> None:
        super().__init__(reason)
        self.code, self.fix = code, fix


def blocks(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed bytes of an open file, at most 1 MiB at a time (zstd: usually less, 32 MiB at most).

    Raises Damaged: E-RAW-14 truncated, corrupt, or followed by something else; E-RAW-16 decompressed to more than 200
    times its size (checked beyond 64 MiB), or a zstd window above 128 MiB.
    """
    kind = compression(path)
    if kind == "gzip":
        yield from _gzip(file)
    elif kind == "zstd":
        yield from _zstd(file)
    else:
        while block := file.read(BLOCK_BYTES):
            yield block


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    n_bytes = 0
    data = file.read(BLOCK_BYTES)
    while data:
        # A member at a time: zlib stops at its end and returns what follows, which bgzip and cat put there.
        member = zlib.decompressobj(wbits=31)  # gzip with its checksum and length
        while not member.eof:
            if not data and not (data := file.read(BLOCK_BYTES)):
                raise _truncated("gzip", n_bytes)
            try:
                block = member.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                raise _corrupt("gzip", n_bytes, error) from error
            data = member.unconsumed_tail
            n_bytes += len(block)
            _check_ratio(n_bytes, file.tell() - len(data))
            if block:
                yield block
        data = member.unused_data
        data += file.read(len(GZIP_MAGIC)) if len(data) < len(GZIP_MAGIC) else b""
        if data.startswith(b"\0"):  # tapes and some tools pad with zeros
            while data and not data.strip(b"\0"):
                data = file.read(BLOCK_BYTES)
            if data:
                raise _garbage("gzip", data.lstrip(b"\0"), n_bytes)
        if data and not data.startswith(GZIP_MAGIC):
            raise _garbage("gzip", data, n_bytes)


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    with base.package_needed("zstandard", ".zst files"):
        import zstandard
    n_bytes = 0
    data = file.read(ZSTD_HEADER_BYTES)
    while data:
        if data.startswith(ZSTD_MAGIC):
            try:
                window = zstandard.get_frame_parameters(data).window_size
            except zstandard.ZstdError as error:
                raise _corrupt("zstd", n_bytes, error) from error
            if window > MAX_WINDOW_BYTES:
                what = f"asks for a zstd window of {window} bytes; at most {MAX_WINDOW_BYTES} are possible"
                raise Damaged(what, "E-RAW-16", "compress it again without --ultra and --long")
        elif not zstd_skippable(data):
            raise _garbage("zstd", data, n_bytes)
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        while not frame.eof:
            if not data and not (data := file.read(ZSTD_FEED_BYTES)):
                raise _truncated("zstd", n_bytes)
            try:
                block = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _corrupt("zstd", n_bytes, error) from error
            data = b""
            n_bytes += len(block)
            _check_ratio(n_bytes, file.tell())
            if block:
                yield block
        data = frame.unused_data
        data += file.read(ZSTD_HEADER_BYTES) if len(data) < ZSTD_HEADER_BYTES else b""


def _check_ratio(n_bytes: int, taken: int) -> None:
    if n_bytes > FREE_BYTES and n_bytes > MAX_RATIO * taken:
        what = f"{taken} bytes became {n_bytes}, more than {MAX_RATIO} times as many: a decompression bomb, no text"
        raise Damaged(what, "E-RAW-16", "leave the file out, or decompress it by hand and look at it")


def _truncated(kind: str, n_bytes: int) -> Damaged:
    return Damaged(f"truncated {kind}: it ends after {n_bytes} decompressed bytes without its end mark")


def _corrupt(kind: str, n_bytes: int, error: Exception) -> Damaged:
    return Damaged(f"damaged {kind} after {n_bytes} decompressed bytes ({' '.join(str(error).split())})")


def _garbage(kind: str, data: bytes, n_bytes: int) -> Damaged:
    return Damaged(f"something else ({data[:4].hex(' ')}) follows the {kind} data after {n_bytes} decompressed bytes")


START = {"line": 1, "byte": 0, "found": 0}
EXCERPT_BYTES = 320
MOST_SKIPPED = 1 << 30  # bytes beyond work.max_line_bytes after which there are no lines: a disk image, a file of zeros


class TooLong(NamedTuple):
    """What is kept of a line longer than work.max_line_bytes. length: without its newline; n_bytes: with it."""

    start: bytes
    length: int
    n_bytes: int


Lines = Chunk[bytes | TooLong]


class Buffer:
    """Bytes read ahead of the next chunk."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self.source, self.data, self.ended = source, bytearray(), False

    def fill(self, n_bytes: int) -> None:
        """Read until more than n_bytes are held, or all that is left."""
        while len(self.data) <= n_bytes and not self.ended:
            block = next(self.source, None)
            self.ended = block is None
            self.data += block or b""

    def take(self, n_bytes: int) -> bytes:
        with memoryview(self.data) as view:
            taken = bytes(view[:n_bytes])
        del self.data[:n_bytes]
        return taken


def chunks(input: Input, source: CorpusSourceConfig, work: WorkConfig, cursor: Cursor | None) -> Iterator[Lines]:
    """Yield whole lines of at most work.chunk_bytes, or one longer line. Raises as `readers.chunks` says."""
    after = dict(cursor or START)
    watched = Watched(input.path, input.size)
    buffer = Buffer(iter(()))
    packed = compression(input.path) is not None
    try:
        with open(input.path, "rb") as file:
            buffer.source = blocks(input.path, file)
            _go_to(after["byte"], buffer, None if packed else file, input)
            if after["byte"] == 0:
                buffer.fill(HEAD_BYTES)
                _check_head(bytes(buffer.data[:HEAD_BYTES]), input.path)
            while data := _cut(buffer, work):
                watched.check()
                chunk = _chunk(data, after)
                after = chunk.after
                yield chunk if not packed else Chunk(chunk.first, chunk.n_bytes, file.tell(), data, after)
    except Damaged as error:
        watched.check()
        line = after["line"] + buffer.data.count(b"\n")
        raise DataError(f"{error.code} {escape(input.path)}:{line}: {error}. Fix: {error.fix}") from error
    except OSError as error:
        base.raise_unreadable(input.path, error)
    watched.check()
    if not after["found"]:
        raise base.no_documents(input.path, f"{after['byte']} bytes, all blank")


def documents(path: str, source: CorpusSourceConfig, work: WorkConfig, chunk: Lines) -> Iterator[Document | Reject]:
    """Yield every line that is not blank, in order."""
    byte = chunk.after["byte"] - chunk.n_bytes
    if isinstance(chunk.data, TooLong):
        yield base.too_long(chunk.first, byte, "a line", chunk.data.length, work, excerpt(chunk.data.start))
        return
    if len(chunk.data) <= work.max_line_bytes and chunk.data.isspace():  # millions of blank lines at once
        return
    for number, line in enumerate(chunk.data.split(b"\n"), chunk.first):
        text = line.removeprefix(BOM)
        if len(line) > work.max_line_bytes:
            yield base.too_long(number, byte, "a line", len(line), work, excerpt(line))
        elif text and not text.isspace():
            yield _parse(number, byte, text, source)
        byte += len(line) + 1


def _go_to(byte: int, buffer: Buffer, seekable: BinaryIO | None, input: Input) -> None:
    """Skip what was done; a line must begin there (E-RAW-26)."""
    left, last = byte, b"\n"
    if seekable is not None and byte:
        seekable.seek(byte - 1)
        left = 1
    while left:
        buffer.fill(0)
        if not buffer.data:
            raise base.cursor_beyond(input.path, f"is shorter than {byte} bytes")
        last = buffer.take(min(left, len(buffer.data)))
        left -= len(last)
    buffer.fill(0)
    if buffer.data and not last.endswith(b"\n"):
        raise base.cursor_beyond(input.path, f"has no line that begins at byte {byte}")


def _check_head(head: bytes, path: str) -> None:
    """Refuse UTF-16 and UTF-32 (E-RAW-12) and files compressed twice (E-RAW-17)."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(head) > 1 and head[:2].count(0) == 1)
    if wide or head.startswith((b"\0\0\0{", b"\0\0\xfe\xff")):
        raise DataError(
            f"E-RAW-12 {escape(path)}:1: UTF-16 or UTF-32 (it begins {head[:4].hex(' ')}); UTF-8 is needed. "
            "Fix: convert it, as in iconv -f UTF-16 -t UTF-8"
        )
    if (inside := content(head)) is not None:
        raise DataError(f"E-RAW-17 {escape(path)}:1: holds {inside} inside; JSON lines are needed. Fix: unpack it")


def _cut(buffer: Buffer, work: WorkConfig) -> bytes | TooLong:
    """Return the next whole lines, decided by the bytes from there on alone; empty at the end."""
    buffer.fill(work.chunk_bytes)
    if len(buffer.data) <= work.chunk_bytes:
        return buffer.take(len(buffer.data))
    end = buffer.data.rfind(b"\n", 0, work.chunk_bytes)
    if end >= 0:
        return buffer.take(end + 1)
    # Searched from where the last search ended, so that a line of a gigabyte is not scanned again with every block.
    seen = work.chunk_bytes  # one line longer than a chunk
    while (end := buffer.data.find(b"\n", seen)) < 0 and not buffer.ended and len(buffer.data) <= work.max_line_bytes:
        seen = len(buffer.data)
        buffer.fill(seen)
    length = end if end >= 0 else len(buffer.data)
    return buffer.take(length + 1) if length <= work.max_line_bytes else _skip_line(buffer, work)


def _skip_line(buffer: Buffer, work: WorkConfig) -> TooLong:
    """Skip a line that is too long, and return what is known of it."""
    buffer.fill(EXCERPT_BYTES)
    start, n_bytes, limit = bytes(buffer.data[:EXCERPT_BYTES]).split(b"\n")[0], 0, work.max_line_bytes + MOST_SKIPPED
    while buffer.data:
        end = buffer.data.find(b"\n") + 1
        n_bytes += end or len(buffer.data)
        if n_bytes > limit:
            raise Damaged(f"more than {limit:,} bytes without the end of a line", "E-RAW-30", "give a file of lines")
        del buffer.data[: end or len(buffer.data)]
        if end:
            return TooLong(start, n_bytes - 1, n_bytes)
        buffer.fill(0)
    return TooLong(start, n_bytes, n_bytes)


def _chunk(data: bytes | TooLong, at: Cursor) -> Lines:
    if isinstance(data, TooLong):
        n_bytes, n_lines, any_document = data.n_bytes, 1, True
    else:
        n_bytes, n_lines = len(data), data.count(b"\n") + (not data.endswith(b"\n"))
        any_document = bool(at["found"] or re.search(rb"\S", data[len(BOM) if data.startswith(BOM) else 0 :]))
    after = {"line": at["line"] + n_lines, "byte": at["byte"] + n_bytes, "found": int(any_document)}
    return Chunk(at["line"], n_bytes, after["byte"], data, after)


class _Refused(ValueError):
    """What the decoder's hooks refuse: (code, reason)."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise _Refused("E-RAW-07", f"key {excerpt(twice)} twice in one object; each key may occur once")
    return record


def _no_number(name: str) -> float:
    raise _Refused("E-RAW-08", f"{name} is no JSON; a number or null is needed")


DECODE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number).decode


def _parse(number: int, byte: int, line: bytes, source: CorpusSourceConfig) -> Document | Reject:
    """Parse a line; a Reject says what is wrong with it (E-RAW-04 to 12)."""

    def reject(code: str, reason: str, shown: bytes | str) -> Reject:
        return Reject(number, byte, code, reason, excerpt(shown))

    if b"\0" in line:
        at = line.index(0)
        reason = f"NUL byte at byte {at} of the line (UTF-16, or a hole in the file?); UTF-8 text is needed"
        return reject("E-RAW-12", reason, line)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8 at byte {error.start} of the line; UTF-8 is needed"
        return reject("E-RAW-10", reason, line[max(0, error.start - 40) :])
    try:
        record = DECODE(text)
    except _Refused as error:
        code, reason = error.args
        return reject(code, reason, text)
    except json.JSONDecodeError as error:
        reason = f"malformed JSON at column {error.pos + 1} ({error.msg}); one JSON object is needed"
        return reject("E-RAW-04", reason, text[max(0, error.pos - 40) :])
    except RecursionError:
        return reject("E-RAW-09", "JSON nested deeper than Python reads; a flat object is needed", text)
    except ValueError:  # int() has a limit on digits
        return reject("E-RAW-09", "a whole number with thousands of digits; ordinary numbers are needed", text)
    if not isinstance(record, dict):
        return reject("E-RAW-05", f"{kind_of(record)} at the top of the line; an object is needed", text)
    return base.document(number, byte, record, source)
