"""python -m data_prep verify"""

from pathlib import Path
from typing import Any

from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import plain
from data_prep.merging.manifest import read
from data_prep.merging.verifying import verify
from data_prep.schema import PrepareConfig

HEAD = ("dataset", "state", "documents", "tokens", "texts read", "bytes")


def run(config: PrepareConfig) -> int:
    """0 when nothing is wrong; 3, and the faults on stdout, when something is."""
    dir = Path(config.corpus.dir)
    manifest = read(dir)
    rows: list[tuple[str, ...]] = []
    faults, n_bytes = [], 0
    with _bar(sum(file["bytes"] for file in manifest["files"].values()), config.work.progress_bar) as bar:
        for checked in verify(dir, manifest, config.look.documents, bar):
            numbers = (checked.n_documents, checked.n_tokens, checked.n_texts, checked.n_bytes)
            state = f"{len(checked.faults)} faults" if checked.faults else "good"
            rows.append((checked.name, state, *(f"{n:,}" if n else "" for n in numbers)))
            faults += checked.faults
            n_bytes += checked.n_bytes
    print(plain(HEAD, rows, n_left=2))
    if faults:
        print("\n".join(faults))
        return DataError.exit_code
    print(f"{dir}: verified, {len(manifest['files'])} files, {n_bytes:,} bytes")
    return 0


def _bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="verifying", unit="B", unit_scale=True, disable=None if shown else True)
