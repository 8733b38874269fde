"""Plain, gzip and zstd files as blocks of bytes: streamed, checked to the last byte, and safe from bombs.

The libraries' own file objects are not used: zstandard's stream reader takes a truncated file for a whole one, and
gzip's hides how much it read.
"""

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from coca_train.runtime.errors import UserError
from data_prep.readers.files import compression, zstd_skippable

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

    def __init__(self, code: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.code, self.fix = code, fix


def blocks(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The decompressed bytes of an open file, at most 1 MiB at a time (zstd: usually less, 32 MiB at most).

    Raises Damaged: E-RAW-14 truncated, corrupt, or followed by something else; E-RAW-16 decompressed to more than 200
    times its size (looked at beyond 64 MiB), or a zstd window above 128 MiB.
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
        # A member at a time: zlib stops at its end and hands back what follows, which bgzip and cat put there.
        member = zlib.decompressobj(wbits=31)  # gzip with its checksum and length
        while not member.eof:
            if not data and not (data := file.read(BLOCK_BYTES)):
                raise _cut("gzip", n_bytes)
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
            _only_zeros(data, file, n_bytes)
            return
        if data and not data.startswith(GZIP_MAGIC):
            raise _garbage("gzip", data, n_bytes)


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    zstandard = _zstandard()
    n_bytes = 0
    data = file.read(ZSTD_HEADER_BYTES)
    while data:
        if data.startswith(ZSTD_MAGIC):
            _check_window(zstandard, data, n_bytes)
        elif not zstd_skippable(data):
            raise _garbage("zstd", data, n_bytes)
        frame = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        while not frame.eof:
            if not data and not (data := file.read(ZSTD_FEED_BYTES)):
                raise _cut("zstd", n_bytes)
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


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(
            f"E-RAW-25 zstandard: cannot be imported ({error}); it reads .zst files. "
            "Fix: pip install 'coca-train[data]'"
        ) from error
    return zstandard


def _check_window(zstandard: Any, head: bytes, n_bytes: int) -> None:
    try:
        window = zstandard.get_frame_parameters(head).window_size
    except zstandard.ZstdError as error:
        raise _corrupt("zstd", n_bytes, error) from error
    if window > MAX_WINDOW_BYTES:
        raise Damaged(
            "E-RAW-16",
            f"asks for a zstd window of {window} bytes; at most {MAX_WINDOW_BYTES} are given",
            "compress it again without --ultra and --long",
        )


def _check_ratio(n_bytes: int, taken: int) -> None:
    if n_bytes > FREE_BYTES and n_bytes > MAX_RATIO * taken:
        raise Damaged(
            "E-RAW-16",
            f"{taken} bytes became {n_bytes}, more than {MAX_RATIO} times as many; that is no text (a decompression "
            "bomb)",
            "leave the file out, or decompress it by hand and look at it",
        )


def _only_zeros(data: bytes, file: BinaryIO, n_bytes: int) -> None:
    while data:
        if rest := data.lstrip(b"\0"):
            raise _garbage("gzip", rest, n_bytes)
        data = file.read(BLOCK_BYTES)


def _cut(kind: str, n_bytes: int) -> Damaged:
    reason = (
        f"truncated {kind}: it ends after {n_bytes} decompressed bytes without its end mark; the whole file is needed"
    )
    return Damaged("E-RAW-14", reason, "copy the file again")


def _corrupt(kind: str, n_bytes: int, error: Exception) -> Damaged:
    words = " ".join(str(error).split())
    reason = f"damaged {kind} after {n_bytes} decompressed bytes ({words}); an intact file is needed"
    return Damaged("E-RAW-14", reason, "copy the file again")


def _garbage(kind: str, data: bytes, n_bytes: int) -> Damaged:
    reason = f"something else ({data[:4].hex(' ')}) follows the {kind} data after {n_bytes} decompressed bytes"
    return Damaged("E-RAW-14", f"{reason}; nothing may follow", "copy the file again")
