"""Measured cells, kept by their content: what was measured decides the name of the file, nothing else does.

The key is a digest of everything a result depends on: suite, its version and settings, weights, variant, point, the
material read, seed and precision. Device, number of ranks and micro batch are not in it. So a killed evaluation goes on
where it stopped, another grid finds the cells it shares, and a changed text or weight is never taken for the old one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coca_train.evaluation.configuration import CELLS
from coca_train.runtime.durable import encode, read_json, sealed, unsealed, write_json

FORMAT = 1


class Store:
    """One JSON file a cell in `folder`; None: nothing is kept. also: further folders in which cells are looked for."""

    def __init__(self, folder: Path | None, also: Sequence[Path] = ()) -> None:
        self.folder, self.also = folder, also

    def key(self, content: Mapping[str, Any]) -> str:
        """Digest of plain JSON values."""
        # Sorted, so that the order in which settings are declared is no part of it.
        text = json.dumps(encode({"format": FORMAT, **content}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """{result, seconds} of a measured cell; None when there is none, or its file is damaged."""
        key = self.key(content)
        folders = [folder for folder in (self.folder, *self.also) if folder is not None]
        found = (_read(_place(folder, key)) for folder in folders)
        return next((kept for kept in found if kept is not None), None)

    def put(self, content: Mapping[str, Any], result: Mapping[str, Any], seconds: float) -> None:
        """Keep a cell, with what it is the result of for people. Raises StorageError when the disk refuses."""
        if self.folder is None:
            return
        path = _place(self.folder, self.key(content))
        write_json(path, sealed({"content": content, "result": result, "seconds": seconds}))


def of_reports(runs: Iterable[Path]) -> list[Path]:
    """Where the reports of finished runs keep their cells: what a training measured is not measured again."""
    return [folder for run in runs for folder in sorted((run / "report").glob(f"**/{CELLS}")) if folder.is_dir()]


def _place(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        kept = unsealed(read_json(path))
    except (OSError, ValueError, AttributeError):  # a torn file is measured again, like none: it is a cache
        return None
    complete = isinstance(kept.get("result"), dict) and isinstance(kept.get("seconds"), int | float)
    return kept if complete else None
