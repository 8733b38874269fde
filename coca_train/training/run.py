"""One run, from its configuration to its report: everything is checked first, then stage after stage is trained."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from coca_train import checkpoint, engine
from coca_train.checkpoint.manifest import unused_name
from coca_train.checkpoint.record import begin_stage, is_new_run, open_record, restore, write_record
from coca_train.config.load import Loaded
from coca_train.config.schema import Config
from coca_train.config.sizes import check_machine
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Edges
from coca_train.data.tokenizer import Tokenizer
from coca_train.doctor.machine import log_machines
from coca_train.engine.base import without_initial_values
from coca_train.hub import forms
from coca_train.hub.initial_weights import check_start, initial_digests, load_initial_weights
from coca_train.models.lora import is_adapter, named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.models.transformer import build_model, vocab_size
from coca_train.runtime import dist, job, shutdown
from coca_train.runtime.dist import explained
from coca_train.runtime.errors import CheckpointError, ResourceError, UserError
from coca_train.runtime.shortage import is_out_of_memory, reason
from coca_train.runtime.watchdog import Watchdog
from coca_train.settings import folder_flags, load
from coca_train.stages import Stage, resolve, stage_at
from coca_train.tracking.trackers import HyperParameters
from coca_train.tracking.writers import MetricsWriter, shared_config
from coca_train.training.data import (
    MakeData,
    check_length,
    commands_for_own_tokens,
    keep_data,
    open_validation,
    prepare_data,
    use_kept_tokenizer,
)
from coca_train.training.ending import print_summary
from coca_train.training.stage import RunContext, StagePlan, train_stage


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise ResourceError E-RUN-16 (code 8) where memory runs out in the block, on a GPU or in the host."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceError(
            f"E-RUN-16 rank {dist.rank()}: out of memory ({reason(error)}). "
            "Fix: halve train.micro_batch_size (the global batch, and so the training, stays the same), or "
            "engine.activation_checkpointing=full, or more sharding: engine.zero_stage=3"
        ) from error


@memory_errors()
def train(loaded: Loaded[Config], folders: Sequence[Path] = (), make_data: MakeData | None = None) -> None:
    """Train as configured, from the newest verified checkpoint of the run directory if there is one.

    folders: of --config-dir, for the commands that messages name. make_data: prepares the missing data of a section;
    None: the data must be there.

    Raises UserError (and its subclasses; each has its exit code) for everything that a user can fix.
    """
    run_dir = Path(loaded.config.run.root) / loaded.config.run.name
    loaded = use_kept_tokenizer(loaded, run_dir)
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
            log_machines(config)
        # What can be refused without the run directory is refused before there is one.
        tokenizer, n_tokens, plans = plan_stages(config, stages, device, make_data)
        with torch.device("meta"), without_initial_values():
            initial = build_model(config, n_tokens)  # of the run: what its first stage changes has no part in digests
        begins_from = None
        if config.start.path is not None:
            own_tokens = partial(commands_for_own_tokens, config)
            begins_from = check_start(config, run_dir, tokenizer, n_tokens, own_tokens)
        # The lock before anything is written there: an import, run.json, the sweep of what a killed process left.
        lock = stack.enter_context(checkpoint.RunLock(run_dir))
        stack.enter_context(shutdown.last_act(lock.release))
        job.note("run_dir", str(run_dir.resolve()))
        dist.broadcast_from_rank0(lambda: dist.log(f"export    {forms.describe_run(stages, n_tokens)}"))
        for line in dist.broadcast_from_rank0(lambda: restore(run_dir)):
            dist.log(line)
        fingerprints = {plan.stage.name: plan.mixture.fingerprint() for plan in plans}
        held_out = {plan.stage.name: plan.validation.held_out.fingerprint() for plan in plans}
        # The record before the checkpoints: it names the run they must belong to.
        with explained("drawing the initial weights, for their digests"):
            is_new = dist.broadcast_from_rank0(lambda: is_new_run(run_dir))
            digests = initial_digests(initial, config.run.seed) if is_new else {}
        note = begins_from.note if begins_from is not None else None
        record, is_changed = dist.broadcast_from_rank0(
            partial(open_record, run_dir, loaded, stages, fingerprints, held_out, digests, note)
        )
        newest = find_newest(config.run.resume, run_dir, record["run_id"])
        # What can refuse to start has done so; what a refused start wrote would stay.
        start = None
        if begins_from is not None:
            start = load_initial_weights(config, n_tokens, run_dir, begins_from.run_dir, lock)
        if is_changed:  # before the run continues, so that the record describes the next steps
            dist.broadcast_from_rank0(lambda: write_record(run_dir, record, loaded.record))
        dist.broadcast_from_rank0(lambda: keep_data(run_dir, tokenizer, plans[-1].validation.held_out))
        # The metrics after the checkpoints: records of steps that will be done again are dropped.
        start_step, written = (newest.step, newest.manifest["metrics"]) if newest else (0, None)

        def hyper_parameters() -> HyperParameters:
            return HyperParameters(shared_config(config), shared_config(load([], launch=False).config))

        metrics = MetricsWriter(
            run_dir, config.tracking, start_step, written, stages[-1].last_step, config.run.name, hyper_parameters
        )
        stack.callback(metrics.close)
        command = shlex.join(["python", "-m", "coca_train", *folder_flags(folders), *loaded.overrides])
        context = RunContext(
            run_dir, tokenizer, n_tokens, metrics, watchdog, lock, record, loaded.record, len(stages), command, []
        )
        first = stages.index(stage_at(stages, newest.step)) if newest else 0
        for number, plan in enumerate(plans[first:], first):
            if number:  # the first is noted with the record
                name = plan.stage.name
                begin_stage(run_dir, record, plan.stage, fingerprints[name], held_out[name])
            newest = train_stage(
                plan,
                context,
                newest or start,
                borders=frozenset(before.last_step for before in stages[:number]),
                is_last=number == len(stages) - 1,
            )
        print_summary(config, run_dir, loaded.overrides, folders)
        # After a good end only: leaving waits for all ranks, and after an error one of them may be gone.
        engine.stop()
        if context.unreported:  # only now: all that was asked for has been trained and saved
            raise context.unreported[0]


def plan_stages(
    config: Config, stages: Sequence[Stage], device: torch.device, make_data: MakeData | None
) -> tuple[Tokenizer, int, list[StagePlan]]:
    """COLLECTIVE. Open the data of every stage and outline its model; return the tokenizer, the rows of the embedding
    and the plans.

    Raises UserError for settings that contradict each other, before anything is written and any weight is read.
    """
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
        mixtures = [
            Mixture(
                stage.config.data, stage.config.train.seq_len, n_tokens, stage.config.train.global_batch_size, edges
            )
            for stage in stages
        ]
        validations = dist.raise_on_all_ranks(lambda: [open_validation(stage.config, n_tokens) for stage in stages])
    with torch.device("meta"), without_initial_values():
        outlines = [build_model(stage.config, n_tokens, stage.trainable, stage.lora) for stage in stages]
    plans = [StagePlan(*each) for each in zip(stages, mixtures, validations, outlines, strict=True)]
    for stage, mixture, _, outline in plans:
        select_trainable(outline, stage.trainable)
        check_positions(stage.name, outline.max_positions, stage.config, outline.position.settings.scheme)
        if len(stages) > 1:
            needed = stage.first_sample + stage.max_steps * stage.config.train.global_batch_size
            check_length(stage.name, needed, mixture.max_samples())
    check_parameters(plans)
    return tokenizer, n_tokens, plans


def check_room(config: Config, n_tokens: int) -> None:
    """Refuse a stage whose weights, or one batch of hidden states, need more memory than there is. Raises UserError
    E-CFG-74."""
    model = replace(config.model, vocab_size=n_tokens)
    for problem in check_machine(model, config.train, config.engine):
        raise UserError(f"{problem.id} {problem.keys[0]}: {problem.message}. Fix: {problem.fix}")


def check_positions(stage: str, longest: int | None, config: Config, scheme: str) -> None:
    """Refuse windows that are longer than a learned table of positions. longest: its length; None: no limit. Raises
    UserError E-POS-04."""
    seq_len = config.train.seq_len
    if longest is not None and longest < seq_len and not config.data.document_mask:
        raise UserError(
            f"E-POS-04 stage {stage}: train.seq_len={seq_len} is beyond the {longest} positions that "
            f"{scheme} learns. Fix: position.max_len={seq_len} for the whole run"
        )


def check_parameters(plans: Sequence[StagePlan]) -> None:
    """Refuse a stage with other parameters than the first, adapters aside. Raises UserError E-STG-15."""
    shapes = {
        plan.stage.name: {name: tuple(p.shape) for name, p in named_parameters(plan.outline) if not is_adapter(name)}
        for plan in plans
    }
    first, of_first = next(iter(shapes.items()))
    for stage, own in shapes.items():
        if differing := [name for name in sorted(of_first | own) if of_first.get(name) != own.get(name)]:
            listed = "; ".join(f"{name} {of_first.get(name)} -> {own.get(name)}" for name in differing[:3])
            raise UserError(
                f"E-STG-15 stage {stage}: has other parameters than stage {first}: {listed}; all stages "
                "of a run have the same ones. Fix: a position section without learned parts of its own in this stage"
            )


def find_newest(resume: str, run_dir: Path, run_id: str) -> checkpoint.Checkpoint | None:
    """COLLECTIVE. Return the checkpoint to continue from, as run.resume says. Raises CheckpointError."""
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
