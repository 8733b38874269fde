"""What a run keeps of what it is made with, so that a copy of its directory is whole: its tokenizer, its held-out text.

The training text stays where it is: only to train on, it is needed.
"""

import filecmp
import os
import shutil
from pathlib import Path

from coca_train.data.held_out import HeldOut
from coca_train.data.storage import storage
from coca_train.data.tokenizer import Tokenizer, main_name
from coca_train.hub.tokenizer_files import FOLDER, keep
from coca_train.runtime import dist, durable, outside
from coca_train.runtime.printing import n_bytes
from coca_train.settings import HELD_OUT, own_tokenizer

LIMIT = 64 << 20  # of held-out text [bytes]
ENDS = (".bin", ".idx", ".sums")


def keep_belongings(run_dir: Path, tokenizer: Tokenizer, held_out: HeldOut) -> None:
    """Rank 0: copy into a run directory what it does not keep yet. Raises StorageError E-IO-01."""
    with storage(str(run_dir)):
        _keep_tokenizer(run_dir, tokenizer)
        _keep_held_out(run_dir / HELD_OUT, held_out)


def _keep_tokenizer(run_dir: Path, tokenizer: Tokenizer) -> None:
    there = own_tokenizer(run_dir)
    if there is not None and Tokenizer(there).identity == tokenizer.identity:
        return
    if there is not None:  # of a start that came to no checkpoint
        there.unlink()
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
    path = Path(tokenizer.path)
    keep(path, tokenizer, run_dir / FOLDER)
    # Last: what is found by its name is whole.
    durable.replace(run_dir / main_name(path), outside.read_bytes(path))


def _keep_held_out(folder: Path, held_out: HeldOut) -> None:
    files = {
        f"{name}{end}": Path(f"{Path(file.bin_path).with_suffix('')}{end}")
        for name, file in held_out.files.items()
        for end in ENDS
    }
    files = {name: path for name, path in files.items() if path.is_file()}
    if (size := sum(path.stat().st_size for path in files.values())) > LIMIT:
        dist.log(f"held-out  {n_bytes(size)} stay where they are: a copy of the run is evaluated with text.files=")
        return
    for name, path in files.items():
        copy = folder / name
        if path.resolve() == copy.resolve() or (copy.is_file() and filecmp.cmp(path, copy, shallow=False)):
            continue
        folder.mkdir(exist_ok=True)
        building = copy.with_name(f".{name}.building")
        shutil.copyfile(path, building)
        os.replace(building, copy)
