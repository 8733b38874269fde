"""One run, from its config to its report: stage after stage."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from coca_train import checkpoint, engine
from coca_train.checkpoint.naming import unused_name
from coca_train.checkpoint.record import begin_stage, begins_anew, open_record
from coca_train.config.load import Loaded
from coca_train.config.schema import Config, DataConfig
from coca_train.config.sizes import here
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.mixture import Mixture, require_files
from coca_train.data.packing import Edges
from coca_train.data.provenance import MANIFEST
from coca_train.data.tokenizer import Tokenizer
from coca_train.doctor import short
from coca_train.engine.base import without_initial_values
from coca_train.engine.process import ran_out
from coca_train.hub import forms
from coca_train.models.lora import is_adapter, named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.models.transformer import Transformer, build_model, vocab_size
from coca_train.runtime import dist, job, leaving
from coca_train.runtime.errors import CheckpointError, DataError, DeviceMemoryError, UserError
from coca_train.runtime.silence import explained
from coca_train.runtime.watchdog import Watchdog
from coca_train.schedule import resolve, stage_at
from coca_train.settings import folder_flags, load, own_tokenizer
from coca_train.tracking.trackers import HyperParameters
from coca_train.tracking.writers import MetricsWriter, shared_config
from coca_train.training.belongings import keep_belongings
from coca_train.training.farewell import farewell
from coca_train.training.stage import RunContext, run_one
from coca_train.training.start import check_start, find_start, initial_digests
from coca_train.training.tokens import commands_for_missing, commands_for_own_tokens

MakeData = Callable[[DataConfig], None]


@contextmanager
def known_errors() -> Iterator[None]:
    """Memory that ran out, in words."""
    try:
        yield
    except Exception as error:
        if (known := out_of_memory(error)) is not None:
            raise known from error
        raise


@known_errors()
def train(loaded: Loaded, folders: Sequence[Path] = (), make_data: MakeData | None = None) -> None:
    """Train as configured, from the newest verified checkpoint of the run directory if there is one.

    folders: of --config-dir, for what is said of commands.
    make_data: makes the data of a section unless they are there; None: they are.

    Raises UserError (and its subclasses; each has its exit code) for everything a user can mend.
    """
    run_dir = Path(loaded.config.run.root) / loaded.config.run.name
    loaded = with_own_tokenizer(loaded, run_dir)
    config = loaded.config
    with ExitStack() as stack:
        # The watchdog before the process group, so that its thread outlives everything a collective can hang in.
        watchdog = stack.enter_context(Watchdog(config.engine.timeout_s))
        # The group before all that rank 0 does for the others: data, lock, record. They learn of its errors through it.
        is_job = "RANK" in os.environ  # the engine sets it too, for one process
        with explained("starting the engine"):
            device = engine.start(config.engine)
        stages = resolve(config, dist.world_size())
        if is_job:
            short.announce(config)
        # What can be refused without the run directory is refused before there is one.
        for stage in stages:
            prepare_data(stage.config, make_data)
        tokenizer = Tokenizer(config.data.tokenizer)
        own_tokens = partial(commands_for_own_tokens, config)
        n_tokens = vocab_size(config.model, tokenizer.vocab_size, tokenizer.path, own_tokens)
        if device.type == "cpu":
            for stage in stages:
                check_room(stage.config, n_tokens)
        edges = Edges(tokenizer.bos, tokenizer.eod)
        with explained("opening the data"):
            mixtures = {
                each.name: Mixture(
                    each.config.data, each.config.train.seq_len, n_tokens, each.config.train.global_batch_size, edges
                )
                for each in stages
            }
            validations = dist.on_each(lambda: {each.name: validation_of(each.config, n_tokens) for each in stages})
        with torch.device("meta"), without_initial_values():
            outlines = {each.name: build_model(each.config, n_tokens, each.trainable, each.lora) for each in stages}
            initial = build_model(config, n_tokens)  # of the run: what its first stage changes has no part in digests
        for stage in stages:
            select_trainable(outlines[stage.name], stage.trainable)
            check_positions(stage.name, outlines[stage.name], stage.config.data.document_mask)
            if len(config.stages) > 1:
                needed = stage.first_sample + stage.max_steps * stage.config.train.global_batch_size
                check_length(stage.name, needed, mixtures[stage.name].max_samples())
        check_parameters(outlines)
        begins_from = None
        if config.start.path is not None:
            begins_from = check_start(config, run_dir, tokenizer, n_tokens)
        # The lock before anything is written there: an import, run.json, the sweep of what a killed process left.
        lock = stack.enter_context(checkpoint.RunLock(run_dir))
        stack.enter_context(leaving.last_act(lock.release))
        job.note("run_dir", str(run_dir.resolve()))
        dist.on_main(lambda: dist.log(f"export    {forms.of_run(stages, n_tokens)}"))
        start = None
        if begins_from is not None:
            start = find_start(config, n_tokens, run_dir, begins_from.run_dir, lock)
        fingerprints = {name: mixture.fingerprint() for name, mixture in mixtures.items()}
        held_out = {name: each.held_out.fingerprint() for name, each in validations.items()}
        # The record before the checkpoints: it says which run they must belong to.
        with explained("drawing the initial weights, for their digests"):
            digests = initial_digests(initial, config.run.seed) if dist.on_main(lambda: begins_anew(run_dir)) else {}
        note = begins_from.note if begins_from is not None else None
        record = dist.on_main(lambda: open_record(run_dir, loaded, stages, fingerprints, held_out, digests, note))
        dist.on_main(lambda: keep_belongings(run_dir, tokenizer, validations[stages[-1].name].held_out))
        newest = newest_checkpoint(config.run.resume, run_dir, record["run_id"])
        # The metrics after them: records of steps that will be done again are dropped.
        start_step = newest.step if newest else 0

        def shown() -> HyperParameters:
            return HyperParameters(shared_config(config), shared_config(load([], launch=False).config))

        metrics = MetricsWriter(run_dir, config.tracking, start_step, stages[-1].last_step, config.run.name, shown)
        stack.callback(metrics.close)
        again = shlex.join(["python", "-m", "coca_train", *folder_flags(folders), *loaded.overrides])
        context = RunContext(run_dir, tokenizer, n_tokens, metrics, watchdog, lock, record, len(stages), again)
        first = stages.index(stage_at(stages, newest.step)) if newest else 0
        for number, stage in enumerate(stages[first:], first):
            if number:  # the first is noted with the record
                begin_stage(run_dir, record, stage, fingerprints[stage.name], held_out[stage.name])
            newest = run_one(
                stage,
                mixtures[stage.name],
                validations[stage.name],
                outlines[stage.name],
                context,
                newest or start,
                borders=frozenset(before.last_step for before in stages[:number]),
                is_last=number == len(stages) - 1,
            )
        farewell(config, run_dir, loaded.overrides, folders)
        # After a good end only: leaving waits for all ranks, and after an error one of them may be gone.
        engine.stop()


def with_own_tokenizer(loaded: Loaded, run_dir: Path) -> Loaded:
    """The same with the tokenizer that the run directory keeps, where the one it began with is gone."""
    data = loaded.config.data
    if data.prepare != "none" or Path(data.tokenizer).is_file() or begins_anew(run_dir):
        return loaded
    if (own := own_tokenizer(run_dir)) is None or (data.path is not None and not (Path(data.dir) / MANIFEST).is_file()):
        return loaded  # the data are to be made yet, and their tokenizer with them
    return replace(loaded, config=replace(loaded.config, data=replace(data, tokenizer=str(own))))


def out_of_memory(error: BaseException) -> DeviceMemoryError | None:
    """The error to exit with (code 8) when `error` says that memory ran out, on a GPU or in the host; else None."""
    if not ran_out(error):
        return None
    return DeviceMemoryError(
        f"E-RUN-16 rank {dist.rank()}: out of memory ({(str(error) or 'host memory').splitlines()[0][:200]}). "
        "Fix: halve train.micro_batch_size (the global batch, and so the training, stays the same), or "
        "engine.activation_checkpointing=full, or more sharding: engine.zero_stage=3"
    )


def validation_of(config: Config, n_tokens: int) -> Validation:
    """This rank's part of a stage's validations. n_tokens: rows of the embedding."""
    return Validation(
        HeldOut(config.data),
        config.train.seq_len,
        config.eval.max_tokens,
        config.train.micro_batch_size,
        n_tokens,
        *dist.reader(config.engine.sequence_parallel),
    )


def check_length(stage: str, needed: int, available: int | None) -> None:
    """Of several stages each must have all the data it asks for [windows]: where the next begins is known beforehand.
    available: None: no end."""
    if available is not None and available < needed:
        raise DataError(
            f"E-MIX-01 stage {stage}: needs {needed:,} windows, a source with on_exhausted=stop ends after "
            f"{available:,}. Fix: data.sources.<name>.on_exhausted=repeat, or a shorter stage: stages.{stage}.max_steps"
        )


def check_room(config: Config, n_tokens: int) -> None:
    """UserError E-CFG-74 where the weights alone, or one batch of hidden states, need more memory than there is."""
    model = replace(config.model, vocab_size=n_tokens)
    for problem in here(model, config.train, config.engine):
        raise UserError(f"{problem.id} {problem.keys[0]}: {problem.message}. Fix: {problem.fix}")


def check_positions(stage: str, outline: Transformer, document_mask: bool) -> None:
    """UserError E-POS-04 where windows are longer than a learned table of positions."""
    longest, seq_len = outline.max_positions, outline.shape.max_seq_len
    if longest is not None and longest < seq_len and not document_mask:
        raise UserError(
            f"E-POS-04 stage {stage}: train.seq_len={seq_len} is beyond the {longest} positions that "
            f"{outline.position.settings.scheme} learns. Fix: position.max_len={seq_len} for the whole run"
        )


def check_parameters(outlines: Mapping[str, Transformer]) -> None:
    """UserError E-STG-15 where a stage has other parameters than the first, adapters aside."""
    shapes = {
        stage: {name: tuple(p.shape) for name, p in named_parameters(outline) if not is_adapter(name)}
        for stage, outline in outlines.items()
    }
    first, of_first = next(iter(shapes.items()))
    for stage, own in shapes.items():
        if differing := [name for name in sorted(of_first | own) if of_first.get(name) != own.get(name)]:
            shown = "; ".join(f"{name} {of_first.get(name)} -> {own.get(name)}" for name in differing[:3])
            raise UserError(
                f"E-STG-15 stage {stage}: has other parameters than stage {first}: {shown}; all stages "
                "of a run have the same ones. Fix: a position section without learned parts of its own in this stage"
            )


def prepare_data(config: Config, make: MakeData | None = None) -> None:
    """Make the data when that is asked for and they are missing (rank 0 works); then look for the files."""
    data = config.data
    if make is not None and data.path is not None:
        dirs = dict.fromkeys(dist.all_gather_object(data.dir))
        if len(dirs) > 1:
            raise DataError(
                f"E-RAW-34 data.path={data.path}: holds other files, or files of another time, for some ranks, which "
                f"would read {' and '.join(dirs)}. Fix: wait until it is copied to all machines, or give a folder that "
                "they share"
            )
    if make is not None:
        dist.on_main(lambda: make(data))
    require_files(data, partial(commands_for_missing, config))


def newest_checkpoint(resume: str, run_dir: Path, run_id: str) -> checkpoint.Checkpoint | None:
    """The checkpoint to go on from, as run.resume asks."""
    newest = checkpoint.find(run_dir, run_id, clean=True)
    if newest is None and resume == "must":
        raise CheckpointError(
            f"E-CKP-28 run.resume=must: {run_dir} holds no checkpoint. "
            "Fix: check run.name and run.root, or run.resume=auto"
        )
    if newest is not None and resume == "never":
        raise CheckpointError(
            f"E-CKP-02 run.resume=never: {run_dir} holds step {newest.step}. "
            f"Fix: {unused_name(run_dir)}, or run.resume=auto"
        )
    return newest
