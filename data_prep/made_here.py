"""A corpus that is made here, as a whole or not at all: in a folder next to its place, which is renamed at the end."""

import shutil
from collections.abc import Callable
from pathlib import Path

from coca_train.data.storage import flush_to_disk, lock_and_wait, storage
from coca_train.runtime.durable import sync_folder
from coca_train.runtime.errors import DataError
from data_prep.manifest import NAME as MANIFEST
from data_prep.manifest import Manifest, check_sizes, describe, dump, read
from data_prep.messages import say


def build_once(
    dir: Path, find: Callable[[], Manifest | None], build: Callable[[Path], Manifest], progress: bool
) -> Manifest:
    """Build a corpus in `dir` unless `find` finds it there, and return its manifest. build: into an empty folder.

    Safe when several processes call it at once: one builds, the others wait and find it.
    """
    if (manifest := find()) is not None:
        return manifest
    with storage(str(dir)):
        dir.parent.mkdir(parents=True, exist_ok=True)
        with lock_and_wait(dir.parent / f".{dir.name}.lock"):
            if (manifest := find()) is not None:
                return manifest  # the process that held the lock made it
            building = dir.parent / f".{dir.name}.building"
            shutil.rmtree(building, ignore_errors=True)  # of a run that was killed
            building.mkdir()
            try:
                manifest = build(building)
                if dir.is_dir():
                    dir.rmdir()  # empty: find() looked
                building.rename(dir)
                sync_folder(dir.parent)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    say(describe(manifest), progress)
    return manifest


def find_corpus(dir: Path, name: str, wrong: Callable[[Manifest], str]) -> Manifest | None:
    """Return the manifest of a corpus already in `dir`, its file sizes checked; None when there is nothing yet.

    wrong: what keeps it from being the one that is asked for, "" nothing. Raises DataError E-PREP-02 for anything else
    in the folder.
    """
    if not dir.exists() or (dir.is_dir() and not any(dir.iterdir())):
        return None
    manifest = read(dir) if (dir / MANIFEST).exists() else None
    what = f"is there, but holds no {name} corpus (manifest.json); nothing is overwritten"
    if manifest is not None and manifest["name"] == name:
        what = wrong(manifest)
    if manifest is None or what:
        raise DataError(f"E-PREP-02 {dir}: {what}. Fix: choose another folder, or move this one away")
    check_sizes(dir, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of a finished corpus, the last of its files, and return it."""
    with open(folder / MANIFEST, "wb") as file:
        file.write(dump(manifest))
        flush_to_disk(file)
    sync_folder(folder)
    return manifest
