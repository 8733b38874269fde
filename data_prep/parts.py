"""Parts: what is tokenized so far of one input, on disk, in pieces after which a killed run resumes.

    parts/<source>/<input:05d>/lock                 held by the process that writes there
    parts/<source>/<input:05d>/<part:05d>.train.bin token ids back to back (little-endian; best_dtype of the vocabulary)
                                      .valid.bin    the same of the held-out documents
                                      .docs.npy     DOCS, one row a document in the order of the input
                                      .json         written last: the part is finished when it is there

The .json is a PartRecord. All of it depends on the input and the settings alone: not on workers, shards, or where a run
was killed.
"""

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sized
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NamedTuple, NotRequired, TypedDict

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.readers.base import Cursor, Identity, Input, Reject, escape
from coca_train.data.storage import flush_to_disk, storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import make_folders, sync_folder
from coca_train.runtime.errors import DataError
from data_prep.messages import differences, join_first

FORMAT = 1
SPLITS = ("train", "valid")  # as numbered in DOCS
DOCS = np.dtype(
    [
        ("line", "<u8"),
        ("tokens", "<u4"),  # end-of-document token included
        ("characters", "<u4"),
        ("bytes", "<u4"),  # of the text as UTF-8
        ("split", "u1"),
        ("digest", "V16"),  # BLAKE2b-128 of the text
        ("id", "V16"),  # BLAKE2b-128 of the id; zero without id_field
    ]
)
COUNTS = ("documents", "characters", "bytes")  # of what is kept; every other count is a rule's
# What a source is read from, and what is only said about it, decides no byte of a part.
NOT_SETTINGS = ("files", "hub", "hub_files", "about", "licence", "group", "weight")


class FileRecord(TypedDict):
    """What a record says of a file."""

    bytes: int
    sha256: str


class RejectRecord(TypedDict):
    """A Reject as JSON."""

    line: int
    byte: int | None
    code: str
    reason: str
    excerpt: str
    path: NotRequired[str]


class PartRecord(TypedDict):
    """The .json of a part. plan: digest of the settings; first: None is the beginning of the input.

    last: whether the input ends here; counts: documents, characters and bytes of what is kept, and by rule what is not.
    """

    format: int
    plan: str
    settings: dict[str, object]
    input: Identity
    first: Cursor | None
    after: Cursor
    last: bool
    counts: dict[str, int]
    rejects: list[RejectRecord]
    files: dict[str, FileRecord]


class Encoded(NamedTuple):
    """A chunk as it goes to disk.

    tokens: by split, ids of all its documents back to back, each with its end token, little-endian in the final dtype;
    documents: DOCS (n,), in the order of the input; counts: "documents", "characters", "bytes" of what is kept, and by
    rule how many were left out; rejects: what could not be used.
    """

    tokens: tuple[np.ndarray, ...]
    documents: np.ndarray
    counts: dict[str, int]
    rejects: list[Reject]


def settings(config: PrepareConfig, name: str, tokenizer: Tokenizer) -> dict[str, object]:
    """Return JSON of everything that decides the bytes of a source's parts, except its inputs.

    work.on_error is not among them: a run that stopped at a bad document goes on with skip. See `finished`.
    """
    source = {key: value for key, value in asdict(config.corpus.sources[name]).items() if key not in NOT_SETTINGS}
    return {
        "format": FORMAT,
        "tokenizer": tokenizer.identity,
        "valid_share": config.corpus.valid_share,
        "valid_characters": config.corpus.valid_characters,
        **{key: getattr(config.work, key) for key in ("max_line_bytes", "chunk_bytes", "part_bytes")},
        "source": source,
    }


def plan(settings: dict[str, object]) -> str:
    """Return the SHA-256 of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def input_folder(dir: str | Path, input: Input) -> Path:
    """Return the folder of an input's parts. dir: corpus.dir."""
    return Path(dir) / "parts" / input.source / f"{input.number:05d}"


def n_read(counts: Mapping[str, int], rejects: Sized) -> int:
    """Count the documents read: kept, left out by a rule, or rejected."""
    return counts["documents"] + sum(n for name, n in counts.items() if name not in COUNTS) + len(rejects)


class Finished(NamedTuple):
    """What is finished of an input. after: where the next part begins; last: nothing is left to do."""

    parts: int
    after: Cursor | None
    last: bool
    read: int
    rejected: int


def read_record(stem: Path) -> PartRecord | None:
    """Read the .json of a part; None where there is none. stem: path without ending. Raises DataError E-TOK-08."""
    try:
        record: PartRecord = untrusted_io.read_json(f"{stem}.json")
        if record["format"] != FORMAT or not record.keys() >= PartRecord.__required_keys__:
            raise ValueError("of another version")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(stem, f"its .json cannot be read ({type(error).__name__})") from error
    return record


def is_done(folder: Path) -> bool:
    """Return whether the newest part of an input is its last one; nothing else is checked."""
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    record = read_record(folder / f"{max(numbers):05d}") if numbers else None
    return bool(record and record["last"])


def finished(folder: Path, input: Input, identity: Identity, now: dict[str, object], on_error: str) -> Finished:
    """Check the finished parts of an input against its settings, the input itself, and each other.

    identity: of the input; now: its `settings`.
    on_error=stop: a part made with skip that left something out ends like the document it left out.
    Raises DataError E-TOK-11 (other tokenizer), 18 (other settings or files), 08 (damaged), E-RAW-19 (input changed).
    """
    number, after, last, read, rejected = 0, None, False, 0, 0
    while not last:
        stem = folder / f"{number:05d}"
        record = read_record(stem)
        if record is None:
            break
        _check(stem, record, input, identity, now)
        if record["first"] != after:
            raise damaged(stem, f"begins at {record['first']}, the part before it ended at {after}")
        if record["rejects"] and on_error == "stop":
            raise Reject(**record["rejects"][0]).error(input.path)
        number, after, last = number + 1, record["after"], record["last"]
        read, rejected = read + n_read(record["counts"], record["rejects"]), rejected + len(record["rejects"])
    return Finished(number, after, last, read, rejected)


def _check(stem: Path, record: PartRecord, input: Input, identity: Identity, now: dict[str, object]) -> None:
    again = f"or remove {escape(stem.parent.parent)}, which begins this source again"
    old, then = record["settings"], record["input"]
    if old != now or record["plan"] != plan(now):
        changes = differences(old, now)
        if len(changes) == 1 and old["tokenizer"] != now["tokenizer"]:
            raise DataError(
                f"E-TOK-11 {escape(stem)}: was made with the tokenizer {str(old['tokenizer'])[:16]}, now it is "
                f"{str(now['tokenizer'])[:16]}. Fix: bring the tokenizer file back, {again}"
            )
        raise DataError(
            f"E-TOK-18 {escape(stem)}: was made with other settings ({join_first(changes)}). Fix: restore those "
            f"settings, {again}"
        )
    if then.get("name") != identity.get("name"):
        raise DataError(
            f"E-TOK-18 {escape(stem)}: was made of {repr(then.get('name'))[:80]}, now {escape(input.path)} is in its "
            "place; files were added to the source, renamed or removed since then. Fix: bring back the files as they "
            f"were, {again}"
        )
    if then != identity:
        raise DataError(
            f"E-RAW-19 {escape(input.path)}: has changed since {escape(stem)} was made "
            f"({', '.join(differences(then, identity))}). Fix: bring the old one back, {again}"
        )
    for name, file in record["files"].items():
        path = stem.parent / name
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            what = "missing" if size is None else f"{size} bytes"
            raise damaged(stem, f"{name} is {what}, its .json says {file['bytes']} bytes")


def damaged(stem: Path, what: str) -> DataError:
    return DataError(
        f"E-TOK-08 {escape(stem)}: {what}; the part is damaged. Fix: remove {escape(stem.parent)} and run the same "
        "command again, which makes the parts of this input again"
    )


# Writing. Everything goes to `<part>.*.tmp`, is flushed to the disk and renamed, the .json last. What a killed run left
# is swept when the input is opened again.

BUFFER_BYTES = 1 << 20
JUDGED_FROM = 1000  # documents read before the share of bad ones says something


class HashedFile:
    """A file written once, from its beginning on; its size and SHA-256 are known when it is closed."""

    def __init__(self, path: Path) -> None:
        self.name, self.n_bytes = path.name, 0
        self._file: BinaryIO = open(path, "wb", buffering=BUFFER_BYTES)  # noqa: SIM115 (closed by close)
        self._sha = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha.update(data)
        self.n_bytes += memoryview(data).nbytes

    def close(self, keep: bool = True) -> FileRecord:
        """Flush to the disk if the file is kept, close it, and return its record: size [bytes] and SHA-256."""
        try:
            if keep:
                flush_to_disk(self._file)
        finally:
            self._file.close()
        return {"bytes": self.n_bytes, "sha256": self._sha.hexdigest()}


def write_npy_header(file: HashedFile, dtype: np.dtype, n_rows: int) -> None:
    """Write what an .npy file begins with: it says how many rows follow, so their number must be known."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n_rows,)}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]


class Part:
    """One part on its way to the disk."""

    def __init__(self, stem: Path, first: Cursor | None) -> None:
        self.stem, self.first = stem, first
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.rejects: list[RejectRecord] = []
        self._tokens = {split: HashedFile(self._temporary(f"{split}.bin")) for split in SPLITS}
        self._rows = open(self._temporary("rows"), "w+b", buffering=BUFFER_BYTES)  # noqa: SIM115 (closed by close)
        self._n_rows = 0

    def _temporary(self, end: str) -> Path:
        return Path(f"{self.stem}.{end}.tmp")

    def add(self, encoded: Encoded) -> None:
        """Append a chunk."""
        for split, ids in zip(SPLITS, encoded.tokens, strict=True):
            self._tokens[split].write(ids.data)
        self._rows.write(encoded.documents.tobytes())
        self._n_rows += len(encoded.documents)
        self.counts.update(encoded.counts)
        for reject in encoded.rejects:
            line, byte, code, reason, excerpt, path = reject
            record: RejectRecord = {
                "line": line, "byte": byte, "code": code, "reason": reason, "excerpt": excerpt,
            }  # fmt: skip
            self.rejects.append(record if path is None else {**record, "path": path})

    def commit(self, settings: dict[str, object], input: Identity, after: Cursor, last: bool) -> None:
        """Publish; the .json is the last name that appears."""
        # Content to the disk, then names, the .json as the last: a part counts when its .json is there, and then all of
        # it is there. The folder is flushed before and after that name, so a power loss cannot reorder them.
        files = {f"{self.stem.name}.{split}.bin": self._tokens[split].close() for split in SPLITS}
        documents = HashedFile(self._temporary("docs.npy"))
        with self._rows:
            self._rows.seek(0)
            write_npy_header(documents, DOCS, self._n_rows)
            while rows := self._rows.read(BUFFER_BYTES):
                documents.write(rows)
        files[f"{self.stem.name}.docs.npy"] = documents.close()
        record: PartRecord = {
            "format": FORMAT,
            "plan": plan(settings),
            "settings": settings,
            "input": input,
            "first": self.first,
            "after": after,
            "last": last,
            "counts": dict(self.counts),
            "rejects": self.rejects,
            "files": files,
        }
        with open(self._temporary("json"), "w", encoding="utf-8") as file:
            json.dump(record, file, sort_keys=True)
            flush_to_disk(file)
        for name in files:
            os.rename(self.stem.parent / f"{name}.tmp", self.stem.parent / name)
        self._temporary("rows").unlink()
        sync_folder(self.stem.parent)
        os.rename(self._temporary("json"), f"{self.stem}.json")
        sync_folder(self.stem.parent)

    def close(self) -> None:
        """Close the files; the next run sweeps what is not committed."""
        with suppress(OSError):  # of a full disk: what is buffered is not wanted
            self._rows.close()
        for file in self._tokens.values():
            with suppress(OSError):
                file.close(keep=False)


class InputParts:
    """The parts of one input, from where they end on; holds the input's lock until `close`.

    Attributes: after, the cursor to go on from; done, nothing is left to do. Nothing here takes memory that grows with
    the input. Raises DataError E-TOK-15 (another process writes there) and what `parts.finished` raises; StorageError.
    """

    def __init__(self, config: PrepareConfig, input: Input, settings: dict[str, object]) -> None:
        self.input, self._config, self._settings = input, config, settings
        self._folder = input_folder(config.corpus.dir, input)
        self._identity = input.identity()
        self._part: Part | None = None
        with storage(str(self._folder)):
            make_folders(self._folder)
            self._lock = open(self._folder / "lock", "ab")  # noqa: SIM115 (close closes it, and with it the lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                finished_parts = finished(self._folder, input, self._identity, settings, config.work.on_error)
                self._number, self.after, self.done = finished_parts.parts, finished_parts.after, finished_parts.last
                self._read, self._rejected = finished_parts.read, finished_parts.rejected
                self._sweep()
            except BlockingIOError:
                self._lock.close()
                raise DataError(
                    f"E-TOK-15 {escape(input.path)}: another process tokenizes it into {escape(self._folder)}. Fix: "
                    "wait for it to end, or give each process a shard=i/n of its own"
                ) from None
            except BaseException:
                self._lock.close()
                raise

    def _sweep(self) -> None:
        """Remove what no finished part vouches for."""
        for path in self._folder.iterdir():
            # Only what is named like a part is ours; notes and locks stay.
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) >= self._number:
                path.unlink()

    def add(self, encoded: Encoded, after: Cursor, ends_part: bool, last: bool) -> None:
        """Append a chunk, and finish the part where it ends.

        Raises DataError: a reject under work.on_error=stop; E-RAW-21 when too many were skipped.
        """
        if encoded.rejects and self._config.work.on_error == "stop":
            raise encoded.rejects[0].error(self.input.path)
        with storage(str(self._folder)):
            if self._part is None:
                self._part = Part(self._folder / f"{self._number:05d}", self.after)
            self._part.add(encoded)
            self._read += n_read(encoded.counts, encoded.rejects)
            self._rejected += len(encoded.rejects)
            share = self._config.work.max_reject_share
            if self._rejected > share * self._read and (last or self._read >= JUDGED_FROM):
                self._refuse_rejects(self._part)
            self.after = after
            if ends_part or last:
                self._part.commit(self._settings, self._identity, after, last)
                self._number, self._part, self.done = self._number + 1, None, last
            if last:
                self._reject_file().unlink(missing_ok=True)

    def _reject_file(self) -> Path:
        return Path(self._config.corpus.dir) / "rejects" / f"{self.input.source}-{self.input.number:05d}.jsonl"

    def _refuse_rejects(self, part: Part) -> None:
        """List all rejects, and raise DataError E-RAW-21."""
        path = self._reject_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            records = [read_record(self._folder / f"{number:05d}") for number in range(self._number)]
            for rejects in [*(record["rejects"] for record in records if record), part.rejects]:
                for reject in rejects:
                    file.write(json.dumps({"input": self.input.path, **reject}, sort_keys=True) + "\n")
            flush_to_disk(file)
        raise DataError(
            f"E-RAW-21 {escape(self.input.path)}: {self._rejected:,} of {self._read:,} documents are bad "
            f"({self._rejected / self._read:.2%}), more than work.max_reject_share="
            f"{self._config.work.max_reject_share}; they are listed in {escape(path)}. Fix: mend the input, or raise "
            "work.max_reject_share"
        )

    def close(self) -> None:
        """Release the input. The next run makes an unfinished part again."""
        if self._part is not None:
            self._part.close()
            self._part = None
        if not self._lock.closed:
            with self._lock, suppress(OSError):  # the next run sweeps again
                self._sweep()
