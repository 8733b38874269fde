"""One stage, from its weights to its last checkpoint and its report: engine, data and loop combined."""

from collections.abc import Container
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple

import torch

from coca_train import checkpoint, engine
from coca_train.attention.layer_types import describe_layers
from coca_train.attention.tiled_attention import WIDENED
from coca_train.checkpoint.manifest import unused_name
from coca_train.checkpoint.record import texts_of
from coca_train.config.schema import DEFAULT, Config, EngineConfig
from coca_train.data.held_out import Validation
from coca_train.data.loader import Loader
from coca_train.data.mixture import Mixture
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import DTYPES, Engine, InitParameter
from coca_train.evaluation.measures.perplexity import validation_loss
from coca_train.models.certificate import certify
from coca_train.models.init import init_parameter
from coca_train.models.lora import adapters_alone, named_parameters, trained_in_full
from coca_train.models.transformer import Transformer, build_model, count_parameters
from coca_train.planning import outline as planning
from coca_train.planning.meta_step import count_flops
from coca_train.runtime import dist
from coca_train.runtime.dist import explained, waiting
from coca_train.runtime.errors import CheckpointError, DataError, Preempted, UserError
from coca_train.runtime.machine import bounded_by_memory, can_compile
from coca_train.runtime.printing import percent
from coca_train.runtime.shutdown import StopRequest
from coca_train.runtime.staging import Staging
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.runtime.watchdog import Watchdog
from coca_train.stages import Stage
from coca_train.tracking.throughput import PeakMemory, Throughput, peak
from coca_train.tracking.writers import MetricsWriter
from coca_train.training.data import Unchanged
from coca_train.training.ending import final_report
from coca_train.training.loop import Tools, run_stage
from coca_train.training.reach import Probe
from coca_train.training.recheck import Recheck
from coca_train.training.saving import Saver

NOTHING = "nope"  # the scheme that is meant to have no effect
ID_BYTES = 8  # of a token in each tensor of a batch: inputs, targets, positions and, with a mask, documents


class StagePlan(NamedTuple):
    """A stage with its data and the outline of its model, whose weights have no memory and are frozen as the stage
    says."""

    stage: Stage
    mixture: Mixture
    validation: Validation
    outline: Transformer


class RunContext(NamedTuple):
    """The objects that all stages of a run share. n_tokens: rows of the embedding. record: run.json. configuration:
    config.yaml. command: that continues the run, without its launcher. unreported: why reports failed."""

    run_dir: Path
    tokenizer: Tokenizer
    n_tokens: int
    metrics: MetricsWriter
    watchdog: Watchdog
    lock: checkpoint.RunLock
    record: JsonObject
    configuration: str
    n_stages: int
    command: str
    unreported: list[UserError]


def train_stage(
    plan: StagePlan,
    context: RunContext,
    origin: checkpoint.Checkpoint | None,
    *,
    borders: Container[int],
    is_last: bool,
) -> checkpoint.Checkpoint | None:
    """COLLECTIVE. Train a stage and report on it; return its last checkpoint, None where no stage follows.

    origin: the checkpoint that it continues, or whose weights it begins with; None: initial ones. borders: steps whose
    checkpoints stay.
    """
    stage, mixture, validation, outline = plan
    config, run_dir, run_id = stage.config, context.run_dir, context.record["run_id"]
    fingerprint = next(one["fingerprint"] for one in context.record["stages"] if one["name"] == stage.name)
    lora = None if stage.lora is None else asdict(stage.lora)
    run_files = texts_of(context.record, context.configuration)
    meta = checkpoint.Meta(run_id, context.record["model_digest"], fingerprint, {"stage": stage.name}, lora, run_files)
    resumed = origin is not None and origin.manifest["run_id"] == run_id and origin.step > stage.first_step
    with ExitStack() as stack:
        init = partial(
            init_parameter,
            model=config.model,
            position=config.position,
            layers=config.layers,
            seed=config.run.seed,
        )
        reader, n_readers = dist.reader(config.engine.sequence_parallel)
        runner = build_engine(plan, context.n_tokens, init if origin is None else None)
        start_step = 0
        with waiting("reading the checkpoint"), explained("reading the checkpoint"):
            if origin is not None and resumed:
                checkpoint.load(origin, runner, meta)
                start_step = origin.step - stage.first_step
            elif origin is not None:
                checkpoint.begin(origin, runner, init, stage.keeps_optimizer)
        # After the weights are in the engine, and before the first save may delete the checkpoint they came from.
        frozen = None
        if origin is not None and config.engine.dtype != "fp32":
            frozen = stack.enter_context(checkpoint.Frozen(origin, runner.trainable, resumed))
        data = Unchanged(mixture, fingerprint)
        keep, metrics = config.checkpoint.keep, context.metrics
        saver = Saver(run_dir, runner, meta, context.lock, data, metrics, keep, borders, frozen)
        stack.enter_context(saver)
        loader = stack.enter_context(
            Loader(
                mixture,
                config.train.global_batch_size,
                config.train.micro_batch_size,
                reader,
                n_readers,
                start_step,
                steps_ahead(config, n_readers),
                stage.first_sample,
                Staging.to(runner.device),
            )
        )
        steps = effective_steps(stage.max_steps, loader.max_steps, start_step, run_dir)
        if resumed:  # a kill between a save and its deletions left one too many, and there may be no further save
            checkpoint.prune(run_dir, config.checkpoint.keep, run_id, borders)
        # Announced only now: every error of data, weights and memory has come before.
        announce_stage(stage, outline, several=context.n_stages > 1)
        dist.log(f"run       {run_dir} ({describe_origin(stage.first_step, origin, resumed)}, {steps} steps)")
        announce_model(outline)
        announce_data(config, mixture, stage.first_sample, steps, n_readers)
        if steps < stage.max_steps:
            dist.log(f"data      a source with on_exhausted=stop ends the run at step {steps} of {stage.max_steps}")
        announce_engine(config.engine, runner.device)
        certify_positions(runner)
        try:
            # Until the last save signals are kept; before and after nothing is to be saved, and one ends the process.
            with StopRequest() as stop:
                probe = None
                if config.eval.extrapolation.every_steps:
                    began = stage.first_step + start_step
                    probe = Probe(config, runner, context.tokenizer, validation.held_out.files, began)
                tools = Tools(
                    context.metrics,
                    meter(stage, context.n_tokens, runner),
                    stop,
                    context.watchdog,
                    validate=partial(validate, runner, validation),
                    save=saver,
                    probe=probe,
                    recheck=Recheck(runner, every) if (every := config.engine.recheck_every_steps) else None,
                )
                run_stage(
                    config, runner, loader, tools, first_step=stage.first_step, start_step=start_step, max_steps=steps
                )
                if is_last:
                    context.metrics.end_records()  # before the report, which reads metrics.jsonl
        except Preempted as stopped:
            runner.close()  # all ranks stop together; after other errors a peer may be gone, and this would wait
            raise Preempted(
                f"{stopped}: {context.command}\nExit code {Preempted.exit_code}: nothing is wrong, and a scheduler may "
                "start it again by itself (docs/operations.md)"
            ) from None
        problem = final_report(
            config,
            run_dir,
            runner,
            context.tokenizer,
            validation.held_out.files,
            stage.first_step + steps,
            "" if is_last else stage.name,
            context.record["overrides"],
            context.metrics.show,
        )
        context.unreported.extend([problem] if problem is not None else [])
        # Before the next stage builds its own: two engines do not fit into the memory of one.
        runner.release()
    if is_last:
        return None
    # The next stage begins from what is on the disk, verified, and not from this engine's memory: so it begins the same
    # way whether the process was killed here or not.
    last = checkpoint.find(run_dir, run_id)
    if last is None or last.step != stage.last_step:
        raise CheckpointError(
            f"E-CKP-27 {run_dir}: the last checkpoint of stage {stage.name}, step {stage.last_step}, was damaged after "
            "it was written; the next stage begins from it. Fix: check the disk, run the same command again"
        )
    return last


def build_engine(plan: StagePlan, n_tokens: int, init: InitParameter | None) -> Engine:
    """COLLECTIVE. Build the engine of a stage. n_tokens: rows of the embedding. init: None: a checkpoint is loaded
    next."""
    stage, config = plan.stage, plan.stage.config
    _, n_readers = dist.reader(config.engine.sequence_parallel)
    memory = engine.SegmentMemorySize(config.model.n_layers, plan.outline.position.memory_len, config.model.d_model)
    with waiting("the start of the engine"), explained("building the engine, the model and the optimizer"):
        return engine.build(
            config.engine,
            config.optim,
            partial(build_model, config, n_tokens, stage.trainable, stage.lora),
            init,
            trainable=stage.trainable,
            micro_batch_size=config.train.micro_batch_size,
            accumulation=config.train.global_batch_size // (config.train.micro_batch_size * n_readers),
            memory=memory if memory.memory_len else None,
        )


def describe_origin(first_step: int, origin: checkpoint.Checkpoint | None, resumed: bool) -> str:
    """Describe from where a stage continues."""
    if origin is None:
        return "new"
    if resumed or first_step:
        return f"from step {origin.step}"
    return f"new, weights of {origin.path}"


def steps_ahead(config: Config, n_readers: int) -> int:
    """COLLECTIVE. Return how many steps' batches are read ahead: data.prefetch_steps, as far as the memory goes."""
    n_tokens = config.train.global_batch_size // n_readers * config.train.seq_len
    has_documents = config.data.document_mask or config.data.curriculum.begin is not None
    bytes_each = n_tokens * ID_BYTES * (4 if has_documents else 3)
    return bounded_by_memory("data.prefetch_steps", config.data.prefetch_steps, bytes_each, dist.ranks_here())


def effective_steps(configured: int, available: int | None, start_step: int, run_dir: Path) -> int:
    """Return the length of a stage [optimizer steps]: as configured, or as far as its data goes (on_exhausted=stop)."""
    steps = configured if available is None else min(configured, available)
    if steps == 0:
        raise DataError(
            "E-MIX-01 data.sources: a source with on_exhausted=stop is shorter than one global batch; nothing can be "
            "trained. Fix: data.sources.<name>.on_exhausted=repeat, or a smaller train.global_batch_size"
        )
    if start_step > steps:
        raise CheckpointError(
            f"E-CKP-21 {run_dir}: is at step {start_step}, beyond the {steps} steps asked for; training does not go "
            f"back. Fix: train.max_steps={start_step} or more, or {unused_name(run_dir)}"
        )
    return steps


def announce_stage(stage: Stage, outline: Transformer, several: bool) -> None:
    """Log what is trained. several: the run has other stages too."""
    if several:
        trained = sum(p.numel() for p in outline.parameters() if p.requires_grad)
        share = 100 * trained / count_parameters(outline)[0]
        place = f"steps {stage.first_step + 1} to {stage.last_step}"
        dist.log(f"stage     {stage.name}: {place}, trains {share:.1f} % of the parameters")
    if stage.lora is not None:
        trained = sorted(name for name, parameter in named_parameters(outline) if parameter.requires_grad)
        in_full = trained_in_full(trained)
        also = f"; in full as well: {', '.join(in_full)}. Adapters alone (export merge=false): trainable="
        also = also + adapters_alone(trained) if in_full else "; adapters alone (export merge=false)"
        dist.log(f"LoRA      rank {stage.lora.rank}, alpha {stage.lora.alpha:g}{also}")


def announce_model(outline: Transformer) -> None:
    total, inner = count_parameters(outline)
    dist.log(
        f"model     {total / 1e6:.1f}M parameters, {inner / 1e6:.1f}M without embeddings; "
        f"{outline.position.settings.scheme}, {outline.attention_pattern.settings.name}"
    )
    if outline.layers.pattern:
        dist.log(f"layers    {describe_layers(outline.layers, outline.config.n_layers)}")


def announce_data(config: Config, mixture: Mixture, first_sample: int, steps: int, n_readers: int) -> None:
    """Log how much of the data a stage reads.

    first_sample: where it begins in its data [sequences]. n_readers: devices, or groups that share each sequence.
    """
    train = config.train
    n_samples = steps * train.global_batch_size
    micro = train.micro_batch_size
    batch = f"{train.global_batch_size} = {n_readers} x {train.global_batch_size // (n_readers * micro)} x {micro}"
    read = mixture.epochs(first_sample + n_samples)
    epochs = ", ".join(f"{name} {n:.2f}" for name, n in read.items())
    dist.log(
        f"data      {n_samples * train.seq_len / 1e6:.2f}M tokens: {train.global_batch_size} x {train.seq_len} a step; "
        f"epochs of each source: {epochs}"
    )
    if config.data.path is not None and len(config.stages) == 1 and 0 < (share := min(read.values())) < 1:
        dist.log(
            f"data      {percent(share)} of {config.data.path} are read; all of it once: "
            f"train.max_steps={ceil(steps / share)}"
        )
    dist.log(f"batch     {batch} sequences (devices x micro batches a step x sequences of one)")


def announce_engine(config: EngineConfig, device: torch.device) -> None:
    """Log the engine; warn where the CPU has no instructions for the dtype, or kernels have no compiler."""
    shared = f", {config.sequence_parallel} to a sequence" if config.sequence_parallel > 1 else ""
    dist.log(
        f"engine    {config.kind}, {dist.world_size()} process(es){shared}, {config.dtype}, "
        f"ZeRO {config.zero_stage if config.kind == 'deepspeed' else '-'}"
    )
    if device.type == "cpu" and WIDENED.get(DTYPES[config.dtype], False):
        dist.log(
            f"slow      this CPU has no instructions for products in {config.dtype}: a step takes ten times as long "
            "and more; a new run with engine=deepspeed_fp32 does not"
        )
    if device.type == "cuda" or config.compile == "blocks":
        can_compile(device.type)


def certify_positions(runner: Engine) -> None:
    """COLLECTIVE. Prove that the position schemes are applied, and log the proof.

    On the weights that will be trained, in the engine that trains them: a proof on other tensors would not be one.
    """
    with runner.eval_module() as module:
        assert isinstance(module, Transformer)
        with explained("proving that the position scheme is applied"):
            certificates = certify(module, runner.device, DTYPES[runner.dtype])
        for layer_type, certificate in certificates.items():
            scheme = module.position_of(layer_type).settings.scheme
            dist.log(f"certified {scheme if layer_type == DEFAULT else f'{layer_type} ({scheme})'}: {certificate}")
            if not module.position_of(layer_type).has_effect and scheme != NOTHING:
                dist.log(f"WARNING: {scheme} does nothing yet (has_effect = False): this trains without positions")


def meter(stage: Stage, n_tokens: int, runner: Engine) -> Throughput:
    """Return the throughput meter of a stage, and log the peak that MFU is measured against. FLOPs are those that are
    computed, fewer where it trains a part. n_tokens: rows of the embedding.

    A CPU has none: what one product reaches there is what other work leaves of the machine at that moment, and the same
    speed was 41 % of it in one run and 88 % in the next.
    """
    limit = None if runner.device.type == "cpu" else peak(runner.device, stage.config.engine.dtype)
    if limit is not None:
        dist.log(f"MFU       against {limit.source}")
    per_token = count_flops(planning.outline(stage.config, stage.trainable, n_tokens, stage.lora))
    return Throughput(per_token.total, limit, dist.world_size(), PeakMemory(runner.device))


def validate(runner: Engine, validation: Validation) -> dict[str, float]:
    """COLLECTIVE. Return the loss on held-out windows by source [nats per token]."""
    with runner.eval_module() as module:
        return {f"valid/{name}": loss for name, loss in validation_loss(module, validation.batches()).items()}
