"""A run directory, opened: its configuration, its newest verified weights, its tokenizer."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coca_train import checkpoint
from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.load import Loaded, check_format
from coca_train.config.schema import Config
from coca_train.data.mixture import tokenizer_digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import DTYPES
from coca_train.models.transformer import Transformer, build_model, vocab_size
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import CheckpointError, DataError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import load_saved
from coca_train.stages import resolve, stage_at


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with its tokenizer; None: its weights came without one.

    loaded: the configuration of the stage that trained it. step: optimizer steps it was trained for.
    """

    loaded: Loaded[Config]
    model: Transformer
    tokenizer: Tokenizer | None
    step: int


def load_run(run_dir: Path | str, device: str = "auto") -> TrainedRun:
    """Return the model of a run in evaluation mode, in the run's precision (float32 instead of float16 on a CPU).

    device: auto, cpu or cuda. Raises UserError when the directory is no run, CheckpointError when it
    holds no verified checkpoint, DataError when the tokenizer is not the run's.
    """
    run_dir = Path(run_dir)
    loaded = load_saved(run_dir)
    record = read_record(run_dir)
    known = record["fingerprint"]["tokenizer"]
    tokenizer = None if known is None else Tokenizer(loaded.config.data.tokenizer)
    if tokenizer is not None and known != tokenizer_digest(tokenizer.path):
        raise DataError(
            f"E-TKN-10 {loaded.config.data.tokenizer}: not the tokenizer {run_dir} was trained with; its tokens would "
            "mean something else. Fix: give back the old file"
        )
    newest = checkpoint.find(run_dir, record["run_id"])
    if newest is None:
        raise CheckpointError(
            f"E-CKP-28 {run_dir}: holds no checkpoint yet; a trained model is needed. Fix: finish the run first: "
            f"python -m coca_train run.name={run_dir.name}"
        )
    loaded = replace(loaded, config=stage_at(resolve(loaded.config), newest.step).config)
    # No memory and no initial values: every weight is read from the checkpoint, in the dtype it is to have.
    with torch.device("meta"):
        n_pieces = tokenizer.vocab_size if tokenizer is not None else 0
        model = build_model(loaded.config, vocab_size(loaded.config.model, n_pieces, loaded.config.data.tokenizer))
    where = pick_device(device)
    dtype = (
        torch.float32 if where == "cpu" and loaded.config.engine.dtype == "fp16" else DTYPES[loaded.config.engine.dtype]
    )
    model = model.to(dtype).to_empty(device=where)
    # `to_empty` has separated a tied head from the embedding.
    model.tie()
    checkpoint.load_weights(newest, model)
    return TrainedRun(loaded, model.eval(), tokenizer, newest.step)


def read_record(run_dir: Path) -> JsonObject:
    """Return the contents of run.json. Raises UserError E-RUN-21 when there is none, CheckpointError E-CKP-23 when it
    is damaged, E-CKP-31 for another format."""
    path = run_dir / "run.json"
    try:
        record = untrusted_io.read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        fix = _restoring(run_dir) if step_folders(run_dir / FOLDER) else "give the directory of a run"
        raise UserError(f"E-RUN-21 {run_dir}: no run directory (no run.json). Fix: {fix}") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from None
    if "run_id" not in record or not isinstance(record.get("fingerprint"), dict):
        raise _damaged(path, "it lacks run_id or fingerprint")
    check_format(path, record)
    return record


def _restoring(run_dir: Path) -> str:
    return f"python -m coca_train verify run={run_dir}, which restores it from a checkpoint"


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"E-CKP-23 {path}: is damaged ({reason}); a run's record is needed. Fix: {_restoring(path.parent)}"
    )


def pick_device(device: str) -> str:
    """Return cpu or cuda. Raises UserError when a GPU is requested and there is none."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("E-RUN-04 command line device=cuda: torch sees no GPU on this machine. Fix: device=cpu")
    return device
