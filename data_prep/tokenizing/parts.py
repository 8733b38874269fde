"""Parts: what is tokenized so far of one input, on disk, in pieces that a killed run goes on behind.

    parts/<source>/<input:05d>/lock                 held by the process that writes there
    parts/<source>/<input:05d>/<part:05d>.train.bin token ids back to back (little-endian; best_dtype of the vocabulary)
                                      .valid.bin    the same of the held-out documents
                                      .docs.npy     DOCS, one row a document in the order of the input
                                      .json         written last: the part is finished when it is there

The .json: {"format": 1, "plan": digest of `settings`, "settings", "input": identity, "first": cursor or null (the
beginning), "after": cursor, "last": whether the input ends here, "counts": {"documents", "characters", "bytes", and by
rule what was left out}, "rejects": [...], "files": {name: {"bytes", "sha256"}}}. All of it depends on the input and the
settings alone: not on workers, shards, or where a run was killed.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import outside
from coca_train.runtime.errors import DataError
from coca_train.runtime.trees import flatten
from data_prep.readers.base import Input, Reject, shown
from data_prep.schema import PrepareConfig

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
# What a source is read from, and what is only told about it, decides no byte of a part.
NOT_SETTINGS = ("files", "hub", "hub_files", "about", "licence", "group", "weight")
ABSENT = "nothing"


def settings(config: PrepareConfig, name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """JSON of everything that decides the bytes of a source's parts, but for its inputs.

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


def plan(settings: dict[str, Any]) -> str:
    """SHA-256 of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def input_folder(dir: str | Path, input: Input) -> Path:
    """Where the parts of an input are. dir: corpus.dir."""
    return Path(dir) / "parts" / input.source / f"{input.number:05d}"


def n_read(record: dict[str, Any]) -> int:
    """Documents read for a part: kept, left out by a rule, or rejected."""
    rules = sum(n for name, n in record["counts"].items() if name not in COUNTS)
    return record["counts"]["documents"] + rules + len(record["rejects"])


class Finished(NamedTuple):
    """What is finished of an input. after: where the next part begins; last: nothing is left to do."""

    parts: int
    after: dict[str, int] | None
    last: bool
    read: int
    rejected: int


def read_record(stem: Path) -> dict[str, Any] | None:
    """The .json of a part (its path without ends); None where there is none. Raises DataError E-TOK-08."""
    try:
        record = outside.read_object(f"{stem}.json")
        needed = ("plan", "settings", "input", "first", "after", "last", "counts", "rejects", "files")
        if record["format"] != FORMAT or any(key not in record for key in needed):
            raise ValueError("of another version")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(stem, f"its .json cannot be read ({type(error).__name__})") from error
    return record


def is_done(folder: Path) -> bool:
    """Whether the newest part of an input is its last one; nothing else is looked at."""
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    record = read_record(folder / f"{max(numbers):05d}") if numbers else None
    return bool(record and record["last"])


def finished(folder: Path, input: Input, identity: dict[str, Any], now: dict[str, Any], on_error: str) -> Finished:
    """The finished parts of an input, held against its settings, the input itself, and each other.

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
        read, rejected = read + n_read(record), rejected + len(record["rejects"])
    return Finished(number, after, last, read, rejected)


def _check(stem: Path, record: dict[str, Any], input: Input, identity: dict[str, Any], now: dict[str, Any]) -> None:
    if record["settings"] != now or record["plan"] != plan(now):
        _refuse_settings(stem, record["settings"], now)
    if record["input"] != identity:
        _refuse_input(stem, record["input"], identity, input)
    for name, file in record["files"].items():
        path = stem.parent / name
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            what = "missing" if size is None else f"{size} bytes"
            raise damaged(stem, f"{name} is {what}, its .json says {file['bytes']} bytes")


def _refuse_settings(stem: Path, old: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = flatten(old), flatten(now)
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key, ABSENT) != after.get(key, ABSENT)]
    again = f"or remove {shown(stem.parent.parent)}, which begins this source anew"
    if changed == ["tokenizer"]:
        raise DataError(
            f"E-TOK-11 {shown(stem)}: was made with the tokenizer {str(before['tokenizer'])[:16]}, now it is "
            f"{after['tokenizer'][:16]}; all parts need the same. Fix: bring the tokenizer file back, {again}"
        )
    words = "; ".join(
        f"{key} was {repr(before.get(key, ABSENT))[:80]}, is {repr(after.get(key, ABSENT))[:80]}" for key in changed[:3]
    )
    more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
    raise DataError(
        f"E-TOK-18 {shown(stem)}: was made with other settings ({words}{more}); all parts need the same. "
        f"Fix: give the settings of then, {again}"
    )


def _refuse_input(stem: Path, old: dict[str, Any], now: dict[str, Any], input: Input) -> None:
    again = f"or remove {shown(stem.parent.parent)}, which begins this source anew"
    if old.get("name") != now.get("name"):
        raise DataError(
            f"E-TOK-18 {shown(stem)}: was made of {repr(old.get('name'))[:80]}, now {shown(input.path)} stands in its "
            "place; files were added to the source, renamed or removed since then, and it needs the same ones. "
            f"Fix: give the files of then, {again}"
        )
    words = ", ".join(
        f"{key} was {repr(old.get(key))[:80]}, is {repr(now[key])[:80]}" for key in now if old.get(key) != now[key]
    )
    raise DataError(
        f"E-RAW-19 {shown(input.path)}: has changed since {shown(stem)} was made ({words}); the parts of an input need "
        f"the same one. Fix: bring the old one back, {again}"
    )


def damaged(stem: Path, what: str) -> DataError:
    return DataError(
        f"E-TOK-08 {shown(stem)}: {what}; the part is damaged. Fix: remove {shown(stem.parent)} and run the same "
        "command again, which makes the parts of this input anew"
    )
