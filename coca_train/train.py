"""One run, from its config to its report: the only wiring."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from coca_train import checkpoint, dist, engine
from coca_train.build import build_model, init_digests, vocab_size
from coca_train.config.errors import CheckpointError, DataError, DeviceMemoryError, Preempted, StorageError
from coca_train.config.load import Loaded
from coca_train.config.schema import Config, DataConfig
from coca_train.data.loader import Loader
from coca_train.data.mixture import Mixture
from coca_train.data.packings import Edges
from coca_train.data.presence import require_files
from coca_train.data.tokenizer import Tokenizer
from coca_train.data.validation import validation_batches
from coca_train.engine.base import DTYPES, Engine
from coca_train.evals.perplexity import validation_loss
from coca_train.final import final_report
from coca_train.loop import Tools, run_stage
from coca_train.metrics import MetricsWriter
from coca_train.models.certificate import certify
from coca_train.models.init import init_parameter
from coca_train.models.transformer import Transformer, count_parameters
from coca_train.record import open_record
from coca_train.recurrence import RecurrentEngine
from coca_train.signals import StopRequest
from coca_train.stages import resolve
from coca_train.throughput import PeakMemory, Throughput, flops_per_token, matmul_parameters, peak
from coca_train.watchdog import Watchdog, peer_lost


def train(loaded: Loaded) -> None:
    """Train as configured, from the newest verified checkpoint of the run directory if there is one.

    Raises UserError (and its subclasses; each has its exit code) for everything a user can mend.
    """
    try:
        _train(loaded)
    except Exception as error:
        if (known := out_of_memory(error) or peer_lost(error)) is not None:
            raise known from error
        raise


def out_of_memory(error: BaseException) -> DeviceMemoryError | None:
    """The error to exit with (code 8) when `error` says that memory ran out, on a GPU or in the host; else None."""
    of_host = isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)
    if not of_host and not isinstance(error, torch.OutOfMemoryError):
        return None
    return DeviceMemoryError(
        f"E-RUN-16 rank {dist.rank()}: out of memory ({(str(error) or 'host memory').splitlines()[0][:200]}). "
        "Fix: halve train.micro_batch_size (the global batch, and so the training, stays the same), or "
        "engine.activation_checkpointing=true, or more sharding: engine.zero_stage=3"
    )


def _train(loaded: Loaded) -> None:
    config = loaded.config
    (stage,) = resolve(config)
    run_dir = Path(config.run.root) / config.run.name
    with ExitStack() as stack:
        signals = stack.enter_context(ExitStack())
        stop = signals.enter_context(StopRequest())
        watchdog = stack.enter_context(Watchdog())
        engine.start(config.engine)
        prepare_data(config.data)
        tokenizer = Tokenizer(config.data.tokenizer)
        n_tokens = vocab_size(config, tokenizer)
        edges = Edges(tokenizer.bos, tokenizer.eod)
        mixture = Mixture(config.data, config.train.seq_len, n_tokens, config.train.global_batch_size, edges)
        lock = stack.enter_context(checkpoint.RunLock(run_dir))
        record = open_record(run_dir, loaded, mixture.fingerprint(), partial(init_digests, config, n_tokens))
        meta = checkpoint.Meta(record["run_id"], record["model_digest"], record["fingerprint"], {})
        found = find_checkpoint(config, run_dir, meta.run_id)
        with torch.device("meta"):
            outline = build_model(config, n_tokens)
        micro_batches = config.train.global_batch_size // (config.train.micro_batch_size * dist.world_size())
        runner = engine.build(
            config.engine,
            config.optim,
            partial(build_model, config, n_tokens),
            partial(init_parameter, model=config.model, position=config.position, seed=config.run.seed),
            trainable=stage.trainable,
            micro_batch_size=config.train.micro_batch_size,
            accumulation=micro_batches,
        )
        if outline.position.memory_len:
            runner = RecurrentEngine(
                runner,
                n_rows=config.train.global_batch_size // dist.world_size(),
                n_layers=config.model.n_layers,
                memory_len=outline.position.memory_len,
                d_model=config.model.d_model,
            )
        start_step = 0
        if found is not None:
            checkpoint.load(found, runner, meta)
            start_step = found.step
        loader = stack.enter_context(
            Loader(
                mixture,
                config.train.global_batch_size,
                config.train.micro_batch_size,
                dist.rank(),
                dist.world_size(),
                start_step,
                config.data.prefetch_steps,
            )
        )
        max_steps = effective_steps(stage.max_steps, loader.max_steps, start_step, run_dir)
        announce(config, outline, mixture, run_dir, start_step, max_steps)
        with runner.eval_module() as module:
            assert isinstance(module, Transformer)
            certificate = certify(module, runner.device, DTYPES[config.engine.dtype])
        dist.log(f"certified {config.position.scheme}: {certificate}")

        metrics = MetricsWriter(run_dir, config, start_step)
        stack.callback(metrics.close)
        throughput = meter(config, outline, runner)
        tools = Tools(
            metrics,
            throughput,
            stop,
            watchdog,
            validate=partial(validate, config, runner, n_tokens),
            save=Saver(run_dir, runner, meta, lock, config.checkpoint.keep),
        )
        try:
            run_stage(config, runner, loader, tools, start_step=start_step, max_steps=max_steps)
        except Preempted:
            runner.close()  # all ranks stop together; after other errors a peer may be gone, and this would wait
            raise
        metrics.close()
        signals.close()  # the model is saved: from here on a signal ends the process at once
        final_report(config, run_dir, runner, tokenizer, max_steps)
        farewell(config, run_dir)
        runner.close()


def effective_steps(wanted: int, available: int | None, start_step: int, run_dir: Path) -> int:
    """Length of the run [optimizer steps]: as configured, or what the data of a source with on_exhausted=stop gives."""
    steps = wanted if available is None else min(wanted, available)
    if steps == 0:
        raise DataError(
            "E-MIX-01 data.sources: a source with on_exhausted=stop is shorter than one global batch; nothing can be "
            "trained. Fix: on_exhausted=repeat, or a smaller train.global_batch_size"
        )
    if start_step > steps:
        raise CheckpointError(
            f"E-CKP-21 {run_dir}: is at step {start_step}, beyond the {steps} steps asked for; training does not go "
            f"back. Fix: train.max_steps={start_step} or more, or another run.name"
        )
    return steps


def farewell(config: Config, run_dir: Path) -> None:
    """Where everything lies and what to try next."""
    prompt = config.eval.sample_prompt or "The"
    made = {
        "loss_curve.png": "training and validation loss",
        "report/extrapolation.png": "perplexity beyond the training window (.md and .json beside it)",
        "metrics.jsonl": "every logged step and validation",
        "config.yaml": "every setting",
        "checkpoints": "the model; the same command with a larger train.max_steps goes on",
    }
    lies = "".join(f"  {name:26s} {what}\n" for name, what in made.items() if (run_dir / name).exists())
    dist.log(
        f"Done. Everything lies in {run_dir}:\n{lies}"
        f"Try next:\n"
        f"  python -m coca_train.generate run={run_dir} prompt={prompt!r}\n"
        f"  python -m coca_train position=rope run.name=rope\n"
        f"  python -m coca_train.compare schemes=rope,alibi,coca,coca_strict\n"
        f"  python -m coca_train --help"
    )


def prepare_data(data: DataConfig) -> None:
    """Make the quickstart corpus when it is asked for and missing (rank 0 works); then look for the files."""
    if data.prepare == "embedded":
        from data_prep.quickstart import embedded

        dist.on_main(lambda: embedded.make(data.dir))
    require_files(data)


def announce(
    config: Config, outline: Transformer, mixture: Mixture, run_dir: Path, start_step: int, max_steps: int
) -> None:
    """Say what is about to happen, before it does."""
    total, inner = count_parameters(outline)
    n_samples = max_steps * config.train.global_batch_size
    epochs = ", ".join(f"{name} {n:.2f}" for name, n in mixture.epochs(n_samples).items())
    dist.log(f"run       {run_dir} ({'from step ' + str(start_step) if start_step else 'new'}, {max_steps} steps)")
    dist.log(
        f"model     {total / 1e6:.1f}M parameters, {inner / 1e6:.1f}M without embeddings; {config.position.scheme}, "
        f"{config.visibility.name}"
    )
    dist.log(
        f"data      {n_samples * config.train.seq_len / 1e6:.2f}M tokens: {config.train.global_batch_size} x "
        f"{config.train.seq_len} a step; epochs of each source: {epochs}"
    )
    if max_steps < config.train.max_steps:
        dist.log(
            f"data      a source with on_exhausted=stop ends the run at step {max_steps} of {config.train.max_steps}"
        )
    dist.log(
        f"engine    {config.engine.kind}, {dist.world_size()} process(es), {config.engine.dtype}, "
        f"ZeRO {config.engine.zero_stage if config.engine.kind == 'deepspeed' else '-'}"
    )


def meter(config: Config, outline: Transformer, runner: Engine) -> Throughput:
    """The throughput meter; says the peak that MFU is measured against."""
    width = outline.shape.n_heads * outline.shape.head_dim
    flops = flops_per_token(matmul_parameters(outline), config.model.n_layers, width, config.train.seq_len)
    limit = peak(runner.device, config.engine.dtype)
    dist.log(f"MFU       against {limit.source}")
    return Throughput(flops, limit, dist.world_size(), PeakMemory(runner.device))


def validate(config: Config, runner: Engine, n_tokens: int) -> dict[str, float]:
    """Loss on held-out windows by source [nats per token]. COLLECTIVE."""
    batches = {
        name: validation_batches(
            source.valid_path,
            config.train.seq_len,
            config.eval.max_tokens,
            config.train.micro_batch_size,
            config.data.document_mask,
            n_tokens,
            dist.rank(),
            dist.world_size(),
        )
        for name, source in config.data.sources.items()
        if source.valid_path
    }
    with runner.eval_module() as module:
        return {f"valid/{name}": loss for name, loss in validation_loss(module, batches).items()}


class Saver:
    """Saves a checkpoint; a failed save costs nothing that is already safe, three in a row end the run."""

    def __init__(
        self, run_dir: Path, runner: Engine, meta: checkpoint.Meta, lock: checkpoint.RunLock, keep: int
    ) -> None:
        self.run_dir, self.runner, self.meta, self.lock, self.keep = run_dir, runner, meta, lock, keep
        self.failures = 0

    def __call__(self, step: int) -> bool:
        saved = checkpoint.save(self.run_dir, step, self.runner, self.meta, self.lock)
        if saved.error is not None:
            self.failures += 1
            if self.failures >= checkpoint.MAX_FAILURES:
                raise StorageError(saved.error)
            dist.log(
                f"WARNING: {saved.error} (save {self.failures} of {checkpoint.MAX_FAILURES} that may fail in a row)"
            )
            return False
        self.failures = 0
        checkpoint.prune(self.run_dir, self.keep, self.meta.run_id)
        return True


def find_checkpoint(config: Config, run_dir: Path, run_id: str) -> checkpoint.Found | None:
    """The checkpoint to go on from, as run.resume asks."""
    found = checkpoint.find(run_dir, run_id, clean=True)
    if found is None and config.run.resume == "must":
        raise CheckpointError(
            f"E-CKP-01 run.resume=must: {run_dir} holds no checkpoint. "
            "Fix: check run.name and run.root, or run.resume=auto"
        )
    if found is not None and config.run.resume == "never":
        raise CheckpointError(
            f"E-CKP-02 run.resume=never: {run_dir} holds step {found.step}. "
            "Fix: choose another run.name, or run.resume=auto"
        )
    return found
