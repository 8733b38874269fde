"""The parts of one input, written: see `data_prep.tokenizing.parts` for what they are.

Everything goes to `<part>.*.tmp`, is flushed to the disk and renamed, the .json last. What a killed run left behind is
swept when the input is opened again.
"""

import fcntl
import hashlib
import json
import os
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from coca_train.data.storage import flush_to_disk, storage
from coca_train.runtime.durable import sync_folder
from coca_train.runtime.errors import DataError
from data_prep.readers.base import Input, Reject, shown
from data_prep.schema import PrepareConfig
from data_prep.tokenizing.encode import Encoded
from data_prep.tokenizing.parts import COUNTS, DOCS, FORMAT, SPLITS, finished, input_folder, n_read, plan, read_record

BUFFER_BYTES = 1 << 20
JUDGED_FROM = 1000  # documents read before the share of bad ones says something
LOCK = "lock"


class Part:
    """One part on its way to the disk."""

    def __init__(self, stem: Path, first: dict[str, int] | None) -> None:
        self.stem, self.first = stem, first
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.rejects: list[dict[str, Any]] = []
        self._sums = {split: hashlib.sha256() for split in SPLITS}
        self._stack = ExitStack()
        self._files: dict[str, IO[bytes]] = {}
        self._n_rows = 0
        for split in SPLITS:
            self._files[split] = self._open(f"{split}.bin")
        self._rows = self._open("rows")

    def _open(self, end: str) -> IO[bytes]:
        return self._stack.enter_context(open(f"{self.stem}.{end}.tmp", "w+b", buffering=BUFFER_BYTES))

    def add(self, encoded: Encoded) -> None:
        for split, ids in zip(SPLITS, encoded.tokens, strict=True):
            self._files[split].write(ids.data)
            self._sums[split].update(ids.data)
        self._rows.write(encoded.documents.tobytes())
        self._n_rows += len(encoded.documents)
        self.counts.update(encoded.counts)
        self.rejects += [_as_json(reject) for reject in encoded.rejects]

    def commit(self, record: dict[str, Any]) -> None:
        """Publish: the .json, made of `record` and of what is known here, is the last name that appears."""
        # Content to the disk, then names, the .json as the last: a part counts when its .json is there, and then all of
        # it is there. The folder is flushed before and after that name, so a power loss cannot reorder them.
        files = {f"{self.stem.name}.{split}.bin": self._finish_tokens(split) for split in SPLITS}
        files[f"{self.stem.name}.docs.npy"] = self._finish_documents()
        self._stack.close()
        record = record | {"counts": dict(self.counts), "rejects": self.rejects, "files": files}
        with open(f"{self.stem}.json.tmp", "w", encoding="utf-8") as file:
            json.dump(record, file, sort_keys=True)
            flush_to_disk(file)
        for name in files:
            os.rename(self.stem.parent / f"{name}.tmp", self.stem.parent / name)
        os.unlink(f"{self.stem}.rows.tmp")
        sync_folder(self.stem.parent)
        os.rename(f"{self.stem}.json.tmp", f"{self.stem}.json")
        sync_folder(self.stem.parent)

    def _finish_tokens(self, split: str) -> dict[str, Any]:
        flush_to_disk(self._files[split])
        return {"bytes": self._files[split].tell(), "sha256": self._sums[split].hexdigest()}

    def _finish_documents(self) -> dict[str, Any]:
        """The rows again, behind a header that says how many they are."""
        sha = hashlib.sha256()
        self._rows.seek(0)
        with open(f"{self.stem}.docs.npy.tmp", "w+b", buffering=BUFFER_BYTES) as file:
            header = {"descr": np.lib.format.dtype_to_descr(DOCS), "fortran_order": False, "shape": (self._n_rows,)}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
            while rows := self._rows.read(BUFFER_BYTES):
                file.write(rows)
            flush_to_disk(file)
            file.seek(0)
            while data := file.read(BUFFER_BYTES):
                sha.update(data)
            return {"bytes": file.tell(), "sha256": sha.hexdigest()}

    def close(self) -> None:
        """Let go of the files; what is not committed is swept later."""
        self._stack.close()


class InputParts:
    """The parts of one input, from where they end on; holds the input's lock until `close`.

    Attributes: after, the cursor to go on from; done, nothing is left to do. Nothing here takes memory that grows with
    the input. Raises DataError E-TOK-15 (another process writes there) and what `parts.finished` raises; StorageError.
    """

    def __init__(self, config: PrepareConfig, input: Input, settings: dict[str, Any]) -> None:
        self.input, self._config, self._settings = input, config, settings
        self._folder = input_folder(config.corpus.dir, input)
        self._identity = input.identity()
        self._part: Part | None = None
        with storage(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self._folder / LOCK, "ab")  # noqa: SIM115 (close closes it, and with it the lock)
            try:
                self._lock_alone()
                finished_parts = finished(self._folder, input, self._identity, settings, config.work.on_error)
                self._number, self.after, self.done = finished_parts.parts, finished_parts.after, finished_parts.last
                self._read, self._rejected = finished_parts.read, finished_parts.rejected
                self._sweep()
            except BaseException:
                self._lock.close()
                raise

    def _lock_alone(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"E-TOK-15 {shown(self.input.path)}: another process tokenizes it into {shown(self._folder)}; one "
                "writer at a time. Fix: wait for it to end, or give each process a shard=i/n of its own"
            ) from None

    def _sweep(self) -> None:
        """Remove what no finished part vouches for."""
        for path in self._folder.iterdir():
            # Only what is named like a part is ours; notes and locks stay.
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) >= self._number:
                path.unlink()

    def add(self, encoded: Encoded, after: dict[str, int], ends_part: bool, last: bool) -> None:
        """Append a chunk; finish the part behind it where it ends.

        Raises DataError: a reject under work.on_error=stop; E-RAW-21 when too many were skipped.
        """
        if encoded.rejects and self._config.work.on_error == "stop":
            raise encoded.rejects[0].error(self.input.path)
        with storage(str(self._folder)):
            if self._part is None:
                self._part = Part(self._folder / f"{self._number:05d}", self.after)
            self._part.add(encoded)
            self._read += n_read({"counts": encoded.counts, "rejects": encoded.rejects})
            self._rejected += len(encoded.rejects)
            self._judge(last)
            self.after = after
            if ends_part or last:
                self._commit(self._part, last)

    def _commit(self, part: Part, last: bool) -> None:
        part.commit(
            {
                "format": FORMAT,
                "plan": plan(self._settings),
                "settings": self._settings,
                "input": self._identity,
                "first": part.first,
                "after": self.after,
                "last": last,
            }
        )
        self._number, self._part, self.done = self._number + 1, None, last
        if last:
            self._reject_file().unlink(missing_ok=True)

    def _reject_file(self) -> Path:
        return Path(self._config.corpus.dir) / "rejects" / f"{self.input.source}-{self.input.number:05d}.jsonl"

    def _judge(self, last: bool) -> None:
        share = self._config.work.max_reject_share
        if self._rejected <= share * self._read or not (last or self._read >= JUDGED_FROM):
            return
        assert self._part is not None
        path = self._reject_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            for number in range(self._number):
                record = read_record(self._folder / f"{number:05d}")
                self._list(file, record["rejects"] if record else [])
            self._list(file, self._part.rejects)
            flush_to_disk(file)
        raise DataError(
            f"E-RAW-21 {shown(self.input.path)}: {self._rejected:,} of {self._read:,} documents are bad "
            f"({self._rejected / self._read:.2%}), more than work.max_reject_share={share}; they are listed in "
            f"{shown(path)}. Fix: mend the input, or raise work.max_reject_share"
        )

    def _list(self, file: IO[str], rejects: list[dict[str, Any]]) -> None:
        for reject in rejects:
            file.write(json.dumps({"input": self.input.path, **reject}, sort_keys=True) + "\n")

    def close(self) -> None:
        """Let go of the input. A part that was not finished is made again by the next run."""
        if self._part is not None:
            with suppress(OSError):  # of a full disk: what is buffered is not wanted
                self._part.close()
            self._part = None
        if not self._lock.closed:
            with self._lock, suppress(OSError):  # the next run sweeps again
                self._sweep()


def _as_json(reject: Reject) -> dict[str, Any]:
    fields = reject._asdict()
    if reject.path is None:
        del fields["path"]
    return fields
