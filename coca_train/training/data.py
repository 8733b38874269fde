"""The data of a run: prepare it where `data.prepare` is set, find it, check it against the stages, keep a copy with the
run."""

import filecmp
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from coca_train.checkpoint.opening import read_record
from coca_train.checkpoint.record import is_new_run
from coca_train.config.corpus_schema import PrepareConfig
from coca_train.config.files import choices, config_dir
from coca_train.config.load import Loaded
from coca_train.config.schema import Config, DataConfig
from coca_train.data.corpus_config import load as load_prepare
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.mixture import Mixture, require_files
from coca_train.data.provenance import MANIFEST
from coca_train.data.storage import Digest, digest, storage
from coca_train.data.tokenizer import Tokenizer, main_name
from coca_train.hub.tokenizer_files import FOLDER, keep
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.printing import n_bytes
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import HELD_OUT, TOKENIZERS, load_saved, own_tokenizer

MAX_HELD_OUT = 64 << 20  # of held-out text that a run directory keeps [bytes]
MakeData = Callable[[DataConfig], None]  # makes the data of a section unless they are there

HELD_OUT_ENDS = (".bin", ".idx", ".sums")


# ---- prepare and open


def prepare_data(config: Config, make: MakeData | None) -> None:
    """COLLECTIVE. Prepare missing data on rank 0, then check that the files exist.

    make: prepares the data of a section; None: the data must be there. Raises DataError, with the commands that prepare
    it.
    """
    data = config.data
    if make is not None:
        if data.path is not None:
            dirs = dict.fromkeys(dist.all_gather_object(data.dir))
            if len(dirs) > 1:
                raise DataError(
                    f"E-RAW-34 data.path={data.path}: holds other files, or files of another time, for some ranks, "
                    f"which would read {' and '.join(dirs)}. Fix: wait until it is copied to all machines, or give a "
                    "folder that they share"
                )
        dist.broadcast_from_rank0(lambda: make(data))
    require_files(data, partial(commands_for_missing, config))


def open_validation(config: Config, n_tokens: int) -> Validation:
    """Open this rank's part of a stage's held-out text. n_tokens: rows of the embedding."""
    return Validation(
        HeldOut(config.data),
        config.train.seq_len,
        config.eval.max_tokens,
        config.train.micro_batch_size,
        n_tokens,
        *dist.reader(config.engine.sequence_parallel),
    )


def check_length(stage: str, needed: int, available: int | None) -> None:
    """Refuse a stage of several with less data than it needs [windows], since where the next one begins is known
    beforehand. available: None: no end. Raises DataError E-MIX-01."""
    if available is not None and available < needed:
        raise DataError(
            f"E-MIX-01 stage {stage}: needs {needed:,} windows, a source with on_exhausted=stop ends after "
            f"{available:,}. Fix: data.sources.<name>.on_exhausted=repeat, or a shorter stage: stages.{stage}.max_steps"
        )


# ---- the commands that make it, for error messages


def commands_for_missing(config: Config) -> str:
    """Return the commands that prepare the data of a shipped corpus, else where to read how; for a run that has begun,
    first the data that it began with."""
    begun = _describe_begun(Path(config.run.root, config.run.name))
    if (corpus := _find_corpus(config.data)) is None:
        return f"{begun}python -m data_prep --help (docs/corpora.md)"
    name, prepared = corpus
    imported = prepared.tokenizer.import_from
    origin = "" if imported is None else f" tokenizer.import_from={_tokenizer_of_start(config) or imported}"
    return (
        f"{begun}python -m data_prep tokenizer corpus={name}{origin}, then python -m data_prep tokenize corpus={name} "
        "(docs/corpora.md)"
    )


def commands_for_own_tokens(config: Config) -> str | None:
    """Return the commands that tokenize the same text with the tokenizer of `start.path`; None: there is no
    `start.path`."""
    if config.start.path is None:
        return None
    corpus = _find_corpus(config.data)
    name, source = ("own_tokens", "<yours>") if corpus is None else (f"{corpus[0]}_own_tokens", corpus[0])
    words = f"corpus={source} corpus.name={name} corpus.dir=data/{name}"
    origin = _tokenizer_of_start(config) or "<the tokenizer of the start model>"
    return (
        f"train on text in the start model's own tokens: python -m data_prep tokenizer {words} "
        f"tokenizer.import_from={origin}; python -m data_prep tokenize {words}; python -m data_prep mix {words}; then "
        f"train with --config-dir data/{name}/config data={name} (docs/corpora.md, tokens of the start model)"
    )


def _describe_begun(run_dir: Path) -> str:
    """Return which data a run continues with, and how to name its place; "": the run has not begun."""
    if is_new_run(run_dir):
        return ""
    try:
        sources = read_record(run_dir)["fingerprint"]["sources"]
        listed = ", ".join(f"{name} of {one['tokens']:,} tokens" for name, one in sources.items())
    except (UserError, KeyError, TypeError, AttributeError):
        return ""  # a damaged record is reported where it is read
    return (
        f"{run_dir} goes on with the data that it began with ({listed}), wherever they lie now: data.dir=<folder>, or "
        "data.sources.<name>.path=<prefix> and valid_path=; if they are gone, "
    )


def _find_corpus(data: DataConfig) -> tuple[str, PrepareConfig] | None:
    """Return the name and configuration of the shipped corpus that is prepared in the folder of this data."""
    for name in choices("corpus", (config_dir(),)):
        try:
            prepared = load_prepare([f"corpus={name}"])
        except UserError:
            continue  # one whose files have to be configured
        if Path(prepared.corpus.dir).absolute() == Path(data.dir).absolute():
            return name, prepared
    return None


def _tokenizer_of_start(config: Config) -> Path | None:
    """Return the path for `tokenizer.import_from`; None where `start.path` has no tokenizer, or does not exist yet."""
    if config.start.path is None:
        return None
    path = Path(config.start.path)
    if any((path / name).is_file() for name in TOKENIZERS):
        return path
    try:
        file = Path(load_saved(path).config.data.tokenizer)
    except UserError:
        return None
    return file if file.is_file() else None


class Unchanged:
    """Compares the files of a stage's data with what the stage began with, while it reads them.

    fingerprint: of the mixture. Only rank 0 does; all are to call it.
    """

    def __init__(self, mixture: Mixture, fingerprint: JsonObject) -> None:
        self._expected: dict[str, Digest] = {}
        for source in mixture.sources:
            kept, dataset = fingerprint["sources"][source.name], source.dataset
            self._expected |= {str(dataset.bin_path): kept["bin"], str(dataset.idx_path): kept["idx"]}
        self._seen = {path: self._look(path) for path in self._expected} if dist.is_main() else {}
        self._turn = itertools.cycle(self._expected)

    def check(self, step: int, everything: bool) -> None:
        """COLLECTIVE, before a save. Digest the files whose size or time has changed and another one by turns, or all.
        Raises DataError E-TOK-19 on every rank."""
        dist.broadcast_from_rank0(lambda: self._check(step, everything))

    def _check(self, step: int, everything: bool) -> None:
        looked = {path: self._look(path) for path in self._expected}
        due = {path for path, seen in looked.items() if everything or seen != self._seen[path]} | {next(self._turn)}
        for path in sorted(due):
            try:
                same = digest(path) == self._expected[path]
            except OSError:
                same = False
            if not same:
                raise DataError(
                    f"E-TOK-19 {path}: was changed while the run reads it; what was trained since the last checkpoint "
                    f"may be of other data, and step {step} is not saved. Fix: restore the file; the same command goes "
                    "on from the last checkpoint"
                )
        self._seen = looked

    @staticmethod
    def _look(path: str) -> tuple[int, int] | None:
        """Return the size and the time of a file; None: it is gone."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns


# ---- kept in the run directory, so that a copy of it is whole; the training text, only needed to train, stays outside


def use_kept_tokenizer(loaded: Loaded[Config], run_dir: Path) -> Loaded[Config]:
    """Return the configuration with the tokenizer that the run directory keeps, where the original file is gone."""
    data = loaded.config.data
    if data.prepare != "none" or Path(data.tokenizer).is_file() or is_new_run(run_dir):
        return loaded
    if (own := own_tokenizer(run_dir)) is None or (data.path is not None and not (Path(data.dir) / MANIFEST).is_file()):
        return loaded  # the data are still to be prepared, and their tokenizer with them
    return replace(loaded, config=replace(loaded.config, data=replace(data, tokenizer=str(own))))


def keep_data(run_dir: Path, tokenizer: Tokenizer, held_out: HeldOut) -> None:
    """Rank 0: copy the tokenizer and the held-out text into a run directory that does not keep them yet. Raises
    StorageError E-IO-01."""
    with storage(str(run_dir)):
        _keep_tokenizer(run_dir, tokenizer)
        _keep_held_out(run_dir / HELD_OUT, held_out)


def _keep_tokenizer(run_dir: Path, tokenizer: Tokenizer) -> None:
    kept = own_tokenizer(run_dir)
    if kept is not None and Tokenizer(kept).identity == tokenizer.identity:
        return
    if kept is not None:  # of a start that came to no checkpoint
        kept.unlink()
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
    path = Path(tokenizer.path)
    keep(path, tokenizer, run_dir / FOLDER)
    # Last: whoever finds the file by its name finds it complete.
    durable.replace(run_dir / main_name(path), untrusted_io.read_bytes(path))


def _keep_held_out(folder: Path, held_out: HeldOut) -> None:
    files = {
        f"{name}{end}": Path(f"{Path(file.bin_path).with_suffix('')}{end}")
        for name, file in held_out.files.items()
        for end in HELD_OUT_ENDS
    }
    files = {name: path for name, path in files.items() if path.is_file()}
    if (size := sum(path.stat().st_size for path in files.values())) > MAX_HELD_OUT:
        dist.log(f"held-out  {n_bytes(size)} stay where they are: a copy of the run is evaluated with text.files=")
        return
    for name, path in files.items():
        copy = folder / name
        if path.resolve() == copy.resolve() or (copy.is_file() and filecmp.cmp(path, copy, shallow=False)):
            continue
        durable.make_folders(folder)
        building = copy.with_name(f".{name}.building")
        shutil.copyfile(path, building)
        durable.sync_file(building)
        os.replace(building, copy)
        durable.sync_folder(folder)
