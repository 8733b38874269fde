"""Verify the files of a run: its checkpoints, its records, and what describes it."""

from pathlib import Path

from coca_train.checkpoint.lock import RunLock
from coca_train.checkpoint.manifest import FOLDER, Checkpoint
from coca_train.checkpoint.record import damaged_files, restore
from coca_train.checkpoint.recovery import step_folders, verified
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, DataError, UserError
from coca_train.runtime.printing import n_bytes
from coca_train.tracking import records

LAST_STEP = 10**8  # of any record


def verify_run(run_dir: Path) -> None:
    """Log a line on each file of a run; restore run.json, config.yaml and the readable records of metrics.jsonl.

    Raises UserError E-RUN-21 where there is no checkpoint, CheckpointError E-CKP-01 where something is damaged and
    stays so, LockedError where something is to be restored and a training works in the directory.
    """
    folders = step_folders(run_dir / FOLDER)
    if not folders:
        raise UserError(f"E-RUN-21 {run_dir}: holds no checkpoint, so it is no run. Fix: give the directory of a run")
    wrong, newest = [], None
    for folder in folders:
        checkpoint, reason = verified(folder, None)
        newest = newest or checkpoint
        if checkpoint is None:
            wrong.append(f"{folder.name}: {reason}")
        size = sum(file["bytes"] for file in checkpoint.manifest["files"]) if checkpoint is not None else 0
        dist.log(f"{folder.name}  {f'{n_bytes(size)}, every digest right' if checkpoint is not None else reason}")
    if damaged_files(run_dir):
        with RunLock(run_dir):
            for line in restore(run_dir):
                dist.log(line)
    wrong += [f"{name} {problem}" for name, problem in damaged_files(run_dir).items()]
    if newest is not None and newest.manifest["metrics"] is not None:
        dist.log(f"{records.NAME}  {_verify_records(run_dir, newest)}")
    if wrong:
        raise CheckpointError(
            f"E-CKP-01 {run_dir}: {'; '.join(wrong)}. Fix: restore it from a copy; a run goes on from its newest whole "
            "checkpoint"
        )
    dist.log(f"Done. {run_dir} is whole.")


def _verify_records(run_dir: Path, newest: Checkpoint) -> str:
    """Compare metrics.jsonl with what the newest checkpoint says of it, and keep what can be read where it differs."""
    path, written = run_dir / records.NAME, newest.manifest["metrics"]
    try:
        if records.is_as_written(path, written):
            records.read_jsonl(path)
            return f"{written['records']} records, as {newest.path.name} says"
    except (OSError, DataError):
        pass  # mended below, as far as it goes
    with RunLock(run_dir):
        n_kept = records.keep_readable(path, LAST_STEP)
    return f"was damaged: {n_kept} records can be read and stay; it had {written['records']} at {newest.path.name}"
