"""tokenizer.path: written whole or not at all, never overwritten, with a record of how it was made beside it."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coca_train.data.storage import flush_to_disk, storage, sync_folder
from coca_train.runtime.errors import DataError
from data_prep.schema import PrepareConfig

FORMAT = 1
# Where text is read from and where the model goes decide nothing that could be told apart later.
NOT_SETTINGS = ("files", "hub", "about", "licence")
TOKENIZER = ("model_type", "vocab_size", "sample_bytes", "character_coverage", "byte_fallback")


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.made.json")


def made_from(config: PrepareConfig) -> dict[str, Any]:
    """JSON of the settings that decide a trained vocabulary, but for the files of the sources."""
    sources = {
        name: {key: value for key, value in asdict(source).items() if key not in NOT_SETTINGS}
        for name, source in config.corpus.sources.items()
    }
    return {
        "tokenizer": {key: getattr(config.tokenizer, key) for key in TOKENIZER},
        "valid_share": config.corpus.valid_share,
        "sources": sources,
        "groups": {name: group.share for name, group in config.mix.groups.items()},
    }


def publish(path: Path, model: bytes, record: dict[str, Any] | None) -> None:
    """Model and record, the model last: it is there when everything is. record: None = none is kept."""
    if record is not None:
        record = {"format": FORMAT, "sha256": hashlib.sha256(model).hexdigest(), **record}
        _write(record_path(path), json.dumps(record, indent=2, sort_keys=True).encode() + b"\n")
    _write(path, model)
    sync_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    building = path.with_name(f".{path.name}.building")
    with storage(str(path)):
        with open(building, "wb") as file:
            file.write(content)
            flush_to_disk(file)
        os.replace(building, path)


def already_trained(config: PrepareConfig) -> bool:
    """Whether tokenizer.path was trained with these settings. DataError E-TKN-05 when it is something else."""
    path = Path(config.tokenizer.path)
    if not path.exists():
        return False
    try:
        record = json.loads(record_path(path).read_text(encoding="utf-8"))
        known = record["format"] == FORMAT and record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        record, known = {}, False
    if not known:
        raise refusal(path, "was not made by this command (or was changed since)")
    if found := differences(record, json.loads(json.dumps(made_from(config)))):
        raise refusal(path, f"was made with other settings: {'; '.join(found[:3])}")
    return True


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two JSON trees, as "a.b=1, now 2". Only what `now` has is looked at below the top."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [] if before == now else [f"{name}={json.dumps(before)[:60]}, now {json.dumps(now)[:60]}"]
    keys = dict.fromkeys([*now, *(before if name else ())])
    return [
        line for key in keys for line in differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    ]


def refusal(path: Path, why: str) -> DataError:
    return DataError(
        f"E-TKN-05 {path}: is there, and {why}; a tokenizer is never overwritten, data may have been made with it. "
        "Fix: use it as it is (this step is not needed then), move it away, or choose another tokenizer.path"
    )
