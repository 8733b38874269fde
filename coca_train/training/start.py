"""The weights a run begins with: its own, or those of another run or of a Hugging Face folder, refused before they are
read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.opening import read_record
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.schema import Config
from coca_train.data.storage import digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import starting, tokenizer_files
from coca_train.hub.starting import Start
from coca_train.models.init import init_digests
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError, DataError, Preempted, UserError
from coca_train.runtime.machine import cores
from coca_train.runtime.signals import StopRequest
from coca_train.schedule import resolve
from coca_train.settings import load_saved
from coca_train.training.tokens import commands_for_own_tokens

THREADS = 4  # of a rank, that draw


class _One(NamedTuple):
    """An outline with one of its parameters, as `init_digests` looks at one."""

    outline: Transformer
    name: str
    parameter: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outline, name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield self.name, self.parameter


def initial_digests(outline: Transformer, seed: int) -> dict[str, str]:
    """`init_digests` of a model, of which each rank draws a part, several parameters at once. COLLECTIVE."""
    ones = [_One(outline, name, parameter) for name, parameter in outline.named_parameters()]
    with ThreadPoolExecutor(min(THREADS, cores())) as threads:
        parts = list(threads.map(lambda one: init_digests(one, seed), ones[dist.rank() :: dist.world_size()]))
    drawn = {name: digest for part in parts for name, digest in part.items()}
    everyones = {name: digest for part in dist.all_gather_object(drawn) for name, digest in part.items()}
    return {one.name: everyones[one.name] for one in ones}


def check_start(config: Config, run_dir: Path, tokenizer: Tokenizer, n_tokens: int) -> Start | None:
    """The run directory that `start.path` stands for, made or to be made; None: the run has weights of its own by now.
    COLLECTIVE.

    n_tokens: rows of the embedding. Raises UserError before any weight is read: E-CKP-26 nothing to begin from,
    E-STA-01 another tokenizer, and what `hub.starting.check` refuses.
    """
    return dist.on_main(lambda: _check(config, run_dir, tokenizer, n_tokens))


def find_start(
    config: Config, n_tokens: int, run_dir: Path, begins_from: Path, lock: checkpoint.RunLock
) -> checkpoint.Checkpoint:
    """The newest weights of what `check_start` gave, imported first where they must be. COLLECTIVE.

    Raises Preempted when a stop is asked for while they are imported.
    """

    # Rank 0 looks for all: on a network folder ranks may disagree, and some would wait in an import that others skip.
    if not dist.on_main(begins_from.exists):
        wait = "; the other ranks wait" if dist.world_size() > 1 else ""
        dist.log(f"start     importing {config.start.path} into {begins_from}{wait}")
        # Kept until the next tensor: an import of minutes is cleared away, and all ranks end alike.
        with StopRequest() as stop:
            lock.alone(lambda: starting.bring(config, n_tokens, run_dir, partial(_proceed, stop)))
    if (newest := checkpoint.find(begins_from)) is None:
        raise _unfinished(config)
    dist.on_main(lambda: _say_if_unfinished(config, begins_from, newest.step))
    return newest


def _proceed(stop: StopRequest) -> None:
    if stop.received:
        raise Preempted("stopped while importing start.path, nothing is kept; the same command imports it again")


def _say_if_unfinished(config: Config, run_dir: Path, step: int) -> None:
    """A run that is still at work, or was stopped, gives weights too: perhaps not those that were meant."""
    try:
        last_step = 0 if "imported" in read_record(run_dir) else resolve(load_saved(run_dir).config)[-1].last_step
    except UserError:
        return  # its weights are all that is asked for
    if step < last_step:
        dist.log(f"WARNING: start.path={config.start.path} has not ended: it is at step {step:,} of {last_step:,}")


def _unfinished(config: Config) -> CheckpointError:
    return CheckpointError(
        f"E-CKP-26 start.path={config.start.path}: holds no finished checkpoint. Fix: finish that run first"
    )


def _check(config: Config, run_dir: Path, tokenizer: Tokenizer, n_tokens: int) -> Start | None:
    if step_folders(run_dir / FOLDER):
        return None
    path = Path(str(config.start.path))
    is_run = (path / FOLDER).is_dir()
    if not is_run and not starting.is_folder(path):
        raise CheckpointError(
            f"E-CKP-26 start.path={path}: no run directory (it has no checkpoints) and no Hugging Face folder (it has "
            "no config.json). Fix: give one of the two; a model of the hub is downloaded first: hf download NAME "
            "--local-dir FOLDER"
        )
    if is_run and not step_folders(path / FOLDER):
        raise _unfinished(config)
    _compare_tokenizers(config, tokenizer, _of_run(path) if is_run else tokenizer_files.digests(path))
    return starting.check(config, n_tokens, run_dir)


def _compare_tokenizers(config: Config, ours: Tokenizer, theirs: dict[str, Path]) -> None:
    """theirs: SHA-256 of each tokenizer file that goes with the weights, and where it lies."""
    path = config.start.path
    if not theirs:
        dist.log(f"WARNING: start.path={path} does not say which tokenizer its weights go with; nothing is compared")
        return
    if ours.digest in theirs:
        return
    sha, file = next(iter(theirs.items()))
    what = f"start.path={path}: its weights go with the tokenizer {file} ({sha[:12]}), data.tokenizer={ours.path} is "
    what += ours.digest[:12]
    if not config.start.check_tokenizer:
        dist.log(f"WARNING: {what}; start.check_tokenizer=false takes them as they are")
        return
    fix = "give back that file and set data.tokenizer"
    if file.is_file() and digest(file)["sha256"] == sha:
        fix = f"data.tokenizer={file} where the data are of its tokens; else {commands_for_own_tokens(config)}"
    raise DataError(
        f"E-STA-01 {what}; the same ids would mean other text. Fix: {fix}; or, when you know that the ids agree (a "
        "vocabulary that was extended), start.check_tokenizer=false"
    )


def _of_run(path: Path) -> dict[str, Path]:
    """The tokenizer of a run and, where it was imported, the other files of the same tokenizer; empty: not known."""
    record = read_record(path)
    sha = (record["fingerprint"].get("tokenizer") or {}).get("sha256")
    if sha is None:
        return {}
    file = Path(record.get("folder", ""), record.get("settings", {}).get("data.tokenizer", "tokenizer"))
    return {sha: file} | tokenizer_files.digests(path / tokenizer_files.FOLDER) | tokenizer_files.digests(path)
