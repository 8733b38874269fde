"""metrics.jsonl: the records of a run, one JSON object a line.

Every checkpoint says what the file held at its step, and is published after that is on the disk. A run that continues
cuts off what comes after it, as those steps are done again, and says so where the file is not as the checkpoint says.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.trackers import Record, Sink, Warn

NAME = "metrics.jsonl"
LARGEST = 1e300  # a chart of larger numbers has no axis


def read_jsonl(path: Path, damaged: bool = False) -> list[JsonObject]:
    """Return the records of a metrics.jsonl, without a last line that a crash has cut; none without a file.

    damaged: leave out what cannot be read. Raises DataError E-RUN-31 for a file that cannot be read, or not whole.
    """
    records = []
    try:
        for number, line in enumerate(untrusted_io.lines(path) if os.path.lexists(path) else (), 1):
            if (record := _parse(line)) is not None:
                records.append(record)
            elif line.endswith(b"\n") and not damaged:
                raise DataError(
                    f"E-RUN-31 {path}:{number}: is no record; every line is one. Fix: python -m coca_train verify "
                    f"run={path.parent}, which keeps the others; training on does so too"
                )
    except OSError as error:
        raise DataError(
            f"E-RUN-31 {path}: cannot be read ({error.strerror}); every run writes its records there. "
            "Fix: move it away: rm -r, or restore it"
        ) from error
    return records


def _parse(line: bytes) -> JsonObject | None:
    """Return a record with those of its values that a training writes; None: it is no record."""
    try:
        record = untrusted_io.from_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int or not 0 <= record["step"] < 10**8:
        return None
    return {key: value for key, value in record.items() if _is_measured(key, value)}


def _is_measured(key: str, value: object) -> bool:
    """Whether a training records such a value: a number, null where it was not finite, or a batch's digest."""
    if value is None or key == "batch_digest":
        return isinstance(value, str) or value is None
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def json_safe(value: object) -> object:
    """Replace numbers that are not finite by null: JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    return [json_safe(item) for item in value] if isinstance(value, list | tuple) else value


def is_as_written(path: Path, written: JsonObject) -> bool:
    """Return whether a metrics.jsonl begins with what a checkpoint says of it (`JsonlSink.written`). Raises OSError."""
    return _hash_first(path, written["bytes"]).hexdigest() == written["sha256"]


def keep_readable(path: Path, last_step: int) -> int:
    """Rewrite a metrics.jsonl without the records after a step and without what cannot be read; return how many stay.
    Raises OSError, and DataError as `read_jsonl`."""
    kept = [record for record in read_jsonl(path, damaged=True) if record["step"] <= last_step]
    durable.replace(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
    return len(kept)


def _hash_first(path: Path, n_bytes: int) -> "hashlib._Hash":
    """Hash the first bytes of a file, or all there are."""
    digest = hashlib.sha256()
    with contextlib.suppress(FileNotFoundError), os.fdopen(untrusted_io.open_file(path), "rb") as file:
        while part := file.read(min(durable.CHUNK, n_bytes)):
            digest.update(part)
            n_bytes -= len(part)
    return digest


class JsonlSink(Sink):
    """Writes metrics.jsonl, each step once.

    start_step: the step that the run continues from. written: what its checkpoint says of the file, as `written`
    returned it; None: it says nothing.
    """

    def __init__(self, path: Path, start_step: int, written: JsonObject | None, warn: Warn) -> None:
        self._path, self._warn = path, warn
        self._file: int | None = None
        self._n_records, self._n_bytes, self._digest = 0, 0, hashlib.sha256()
        try:
            self._continue(start_step, written)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except (OSError, DataError) as error:
            warn(f"metrics are not written to {path}: {error}")

    def _continue(self, start_step: int, written: JsonObject | None) -> None:
        """Cut off the records after start_step. Where the file is not as the checkpoint says, those before it stay that
        can be read, and a line says how many cannot."""
        if written is not None and is_as_written(self._path, written):
            os.truncate(self._path, written["bytes"])
            self._n_records = written["records"]
        else:
            self._n_records = keep_readable(self._path, start_step)
            if written is not None:
                dist.log(
                    f"RECOVERY: {self._path} is not as the checkpoint of step {start_step} left it: {self._n_records} "
                    f"of {written['records']} records can be read; curves will lack the others"
                )
        self._n_bytes = self._path.stat().st_size
        self._digest = _hash_first(self._path, self._n_bytes)

    def write(self, step: int, record: Record) -> None:
        if self._file is None:
            return
        line = (json.dumps(json_safe({"step": step, **record})) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            # One write of a whole line to a file opened for appending: a reader, or a kill, sees all of it or the end
            # of the one before.
            if os.write(self._file, line) < len(line):
                raise OSError("disk full")
        except OSError as error:
            self._warn(f"a record of metrics.jsonl was lost (step {step}): {error}; training goes on")
            os.ftruncate(self._file, size)  # no torn line in the middle of the file
            return
        self._n_records, self._n_bytes = self._n_records + 1, self._n_bytes + len(line)
        self._digest.update(line)

    def written(self) -> JsonObject | None:
        """Return what the file holds now, for the manifest of a checkpoint; None: there is no file."""
        if self._file is None:
            return None
        return {"records": self._n_records, "bytes": self._n_bytes, "sha256": self._digest.hexdigest()}

    def sync(self) -> None:
        """Bring the records to the disk. From any thread."""
        if (file := self._file) is not None:
            try:
                os.fsync(file)
            except OSError as error:
                self._warn(f"metrics.jsonl may lose records: {error}; training goes on")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
