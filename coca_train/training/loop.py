"""The training loop: what every run does, in the order it happens."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch

from coca_train.config.schema import Config
from coca_train.data.batch import Batch, combine_digests, digest_of
from coca_train.engine.base import Engine
from coca_train.engine.optim import lr_at
from coca_train.models.init import seed_of
from coca_train.runtime import dist
from coca_train.runtime.dist import explained
from coca_train.runtime.errors import DivergedError, Preempted
from coca_train.runtime.shutdown import StopRequest
from coca_train.runtime.watchdog import Watchdog
from coca_train.tracking.throughput import Throughput
from coca_train.tracking.writers import MetricsWriter
from coca_train.training.recheck import Recheck


class Tools(NamedTuple):
    """The services that the loop uses besides the engine and the data."""

    metrics: MetricsWriter
    throughput: Throughput
    stop: StopRequest
    watchdog: Watchdog
    validate: Callable[[], dict[str, float]]
    save: Callable[[int, bool, bool], bool]  # training/saving.py
    probe: Callable[[int], dict[str, float]] | None = None  # how far context reaches; empty: nothing to tell
    recheck: Recheck | None = None


def run_stage(
    config: Config,
    engine: Engine,
    batches: Iterator[Sequence[Batch]],
    tools: Tools,
    *,
    first_step: int,
    start_step: int,
    max_steps: int,
) -> None:
    """Train a stage from start_step to max_steps [optimizer steps], both counted from its beginning.

    config: the stage's. first_step: steps of the run before the stage; records and checkpoints count from there.

    Raises Preempted after a saved checkpoint when a stop was requested, DivergedError after engine.max_skipped_steps
    non-finite steps in a row.
    """
    skipped_in_a_row, limit, n_slices = 0, config.engine.timeout_s, config.engine.sequence_parallel
    n_tokens = config.train.global_batch_size * config.train.seq_len  # that are read; fewer may be scored
    for step in range(start_step, max_steps):
        done = first_step + step + 1
        with tools.watchdog.section(f"step {done}", limit):
            started = time.perf_counter()
            # Seeded for each step and rank, so a resumed run draws what it would have drawn, and there is no
            # state of the generator to save. Alike on ranks that share sequences: positions may be drawn.
            seed = partial(torch.manual_seed, seed_of(config.run.seed, first_step + step, dist.reader(n_slices)[0]))
            seed()
            # Every step, though it costs a reduction: a rank without a batch would leave the others waiting for its
            # gradients.
            micro_batches = dist.raise_on_all_ranks(partial(next, batches))
            lr = lr_at(step, config.optim, max_steps)
            with explained(_first_step(config, engine)) if step == start_step else nullcontext():
                if tools.recheck is not None:
                    tools.recheck.before(done, micro_batches, seed)
                result = engine.train_step(micro_batches, lr)
                if tools.recheck is not None:
                    tools.recheck.after(done, result)
            tools.throughput.add(n_tokens, time.perf_counter() - started)

        is_last = step + 1 == max_steps
        skipped_in_a_row = skipped_in_a_row + 1 if result.skipped else 0
        if skipped_in_a_row >= config.engine.max_skipped_steps:
            raise DivergedError(
                f"E-RUN-20 step {done}: {skipped_in_a_row} steps in a row had a non-finite loss or gradient and were "
                f"skipped; engine.max_skipped_steps={config.engine.max_skipped_steps}. "
                "Fix: lower optim.lr, lengthen optim.warmup_steps, or look at the data of these steps"
            )
        if is_last or result.skipped or step == start_step or done % config.tracking.log_every_steps == 0:
            record = {"loss": result.loss, "lr": lr, "grad_norm": result.grad_norm, **tools.throughput.recent()}
            record |= {"skipped_steps": engine.skipped_steps, "batch_digest": batch_digest(micro_batches, n_slices)}
            tools.metrics.log(done, record)
        if is_last or done % config.eval.every_steps == 0:
            with tools.watchdog.section(f"validation at step {done}", limit):
                tools.metrics.log(done, tools.validate())
        if tools.probe is not None and done % config.eval.extrapolation.every_steps == 0:
            with tools.watchdog.section(f"probe at step {done}", limit):
                record = tools.probe(done)
            if record:
                tools.metrics.log(done, record)

        # Asked after the step's records, so that a stopped run has all of them, and before the save, which it needs.
        stopping = tools.stop.requested()
        ends = is_last or stopping
        with tools.watchdog.section(f"checkpoint at step {done}", limit):
            # After every step: a save continues in the background, and is published after a step, by all ranks.
            due = ends or done % config.checkpoint.save_every_steps == 0
            if due and tools.recheck is not None:  # what has changed since is not to be saved
                tools.recheck.unchanged(done)
            saved = tools.save(done, due, ends)
            while is_last and not saved:  # raises StorageError when it cannot be
                saved = tools.save(done, True, True)
        if stopping and saved:
            raise Preempted(f"stopped at step {done}, checkpoint saved; the same command goes on from there")


def _first_step(config: Config, engine: Engine) -> str:
    compiles = engine.device.type == "cuda" or config.engine.compile == "blocks"
    return "the first step, which compiles its kernels" if compiles else "the first step"


def batch_digest(micro_batches: Sequence[Batch], sequence_parallel: int = 1) -> str:
    """Return the fingerprint of the global batch: the same for every world size, micro batch, accumulation and number
    of ranks that share a sequence. Collective."""
    digests = dist.all_gather_object(sum(digest_of(batch) for batch in micro_batches))
    return combine_digests(digests[::sequence_parallel])
