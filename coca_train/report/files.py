"""Report files appear whole or not at all: written beside their place, then renamed."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coca_train.config.errors import StorageError


def write_bytes(path: Path, data: bytes) -> Path:
    """Put `data` at `path` atomically. Raises StorageError when the disk refuses."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(
            f"E-REPORT-01 report {path}: cannot be written ({error.strerror}); a place to write is needed. "
            f"Fix: free some space or choose another folder"
        ) from error
    return path


def write_text(path: Path, text: str) -> Path:
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Mapping[str, Any]) -> Path:
    """Valid JSON: a number that is not finite is written as {"number": "inf"}; read_json gives it back."""
    return write_text(path, json.dumps(encode(data), indent=1) + "\n")


def read_json(path: Path) -> Any:
    return decode(json.loads(path.read_text(encoding="utf-8")))


def encode(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"number": str(value)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, list | tuple) else value


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"number"}:
            return float(value["number"])
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value
