"""The one reader of files that come from outside and are read as they are: JSON, YAML, text.

Such a file may be a pipe, a device, a folder, gigabytes, or brackets a hundred thousand deep. Its demands are bounded
before they are met: it must be a regular file, it is read up to a limit whatever size it claims to have, and its
nesting is checked before any recursive function sees it. A refused file is an OSError (the file) or a ValueError (its
content), as a missing or truncated one is.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]  # an object of JSON; its values have no type of ours

MAX_BYTES = 64 << 20  # of a file that is read whole
MOST_LINES = 4 << 30  # of one that is read line by line: the records of ten million steps, and some seconds [bytes]
DEEPEST = 100  # sections inside sections; results and configurations have about ten
CHUNK = 1 << 20  # [bytes]
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path | str, follow: bool = True) -> int:
    """Open a regular file to read and return its descriptor; OSError for pipes, devices and folders, and for links
    unless `follow`."""
    # O_NONBLOCK, because opening a pipe without a writer would wait for ever before it can be examined.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if (kind := stat.S_IFMT(os.fstat(descriptor).st_mode)) == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, f"is {KINDS.get(kind, 'no file')}; a regular file is needed", str(path))


def read_bytes(path: Path | str, limit: int = MAX_BYTES, follow: bool = True) -> bytes:
    """Read all of a regular file of at most `limit` bytes. Raises OSError."""
    descriptor = open_file(path, follow)
    try:
        parts, held = list[bytes](), 0
        while part := os.read(descriptor, min(CHUNK, limit + 1 - held)):
            parts.append(part)
            held += len(part)
            if held > limit:
                raise OSError(errno.EFBIG, f"has more than {limit:,} bytes", str(path))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_text(path: Path | str, limit: int = MAX_BYTES, errors: str = "strict") -> str:
    """Read a regular file as UTF-8. Raises OSError and ValueError."""
    return read_bytes(path, limit).decode("utf-8", errors)


def lines(path: Path | str, longest: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of a regular file; a line longer than `longest` bytes is left out.

    Raises OSError, also for a file of more than MOST_LINES bytes.
    """
    with os.fdopen(open_file(path), "rb") as file:
        whole, size = True, os.fstat(file.fileno()).st_size
        while line := file.readline(longest):
            # Its size by itself says nothing (some files have none), and all that it holds may take a day to come.
            if max(size, file.tell()) > MOST_LINES:
                raise OSError(errno.EFBIG, f"has more than {MOST_LINES:,} bytes", str(path))
            if whole and (line.endswith(b"\n") or len(line) < longest):
                yield line
            whole = line.endswith(b"\n")


def read_json(path: Path | str, limit: int = MAX_BYTES, follow: bool = True) -> Any:
    """Read JSON of a file. Raises OSError and ValueError."""
    return from_json(read_bytes(path, limit, follow))


def read_object(path: Path | str, limit: int = MAX_BYTES, follow: bool = True) -> JsonObject:
    """Read a JSON object of a file. Raises OSError and ValueError."""
    values = read_json(path, limit, follow)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return values


def from_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON that is nested no deeper than DEEPEST. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    # Not left to the parser: what it takes may still be too deep for a function of ours that calls itself.
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise _too_deep()
        below = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in below for item in items if isinstance(item, dict | list)]
    return value


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {DEEPEST} levels")
