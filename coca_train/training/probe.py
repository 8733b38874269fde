"""The extrapolation probe: how far context reaches, every so many steps of the training.

Definition. On `eval.extrapolation.probe_documents` held-out documents of each source, the same ones every time, and
with the windows of the extrapolation report and the training window, the loss of the trained variant and of every
choice of `eval.extrapolation.frequencies`, all sources together, by evaluation/extrapolation/measure.py. Records:
`probe/<variant>/<window>`, mean NLL [nats per token] (perplexity is its exponential); `probe/training_window` [tokens];
`probe/seconds`, what this probe took; `probe/share`, all probes' part of the time since the stage began to train here.

It reads weights and gives back what it borrows: the position scheme and the visibility of the model are the very
same objects afterwards, nothing is drawn at random, and the optimizer is not touched. Training goes on bit for bit
as without it. Time is that of rank 0; it is not in tokens_per_s.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coca_train.config.schema import Config
from coca_train.engine.base import Engine
from coca_train.evaluation.extrapolation.measure import NothingToScore, extrapolate
from coca_train.runtime import dist
from coca_train.training.ending import held_out_documents
from coca_train.vary import variants


class Probe:
    """Measures when it is called. config: the stage's. start_step: step of the run from which it trains here."""

    def __init__(self, config: Config, runner: Engine, start_step: int) -> None:
        options = config.eval.extrapolation
        asked = replace(options, visibilities=[], max_documents=options.probe_documents)
        self.config = replace(config, eval=replace(config.eval, extrapolation=asked))
        self.runner, self.start_step = runner, start_step
        self.began, self.seconds = time.perf_counter(), 0.0
        self.documents: Mapping[str, list[np.ndarray]] | None = None
        self.said = False  # what it costs, or why there is nothing to measure

    def __call__(self, step: int) -> dict[str, float]:
        """The record of this step; empty when nothing can be scored. COLLECTIVE."""
        started = time.perf_counter()
        try:
            losses = self._measure()
        except NothingToScore as error:
            self._say(f"WARNING: no extrapolation probe: {error}")
            return {}
        seconds = time.perf_counter() - started
        training = started - self.began - self.seconds
        self.seconds += seconds
        every = self.config.eval.extrapolation.every_steps
        between = training / (step - self.start_step) * every
        cost = seconds / (seconds + between)
        self._say(f"probe     takes {seconds:.1f} s every {every:,} steps, {cost:.1%} of the training")
        share = self.seconds / (self.seconds + training)
        return losses | {"probe/seconds": seconds, "probe/share": share}

    def _measure(self) -> dict[str, float]:
        """The losses, and the training window."""
        config, training_window = self.config, self.config.train.seq_len
        options = config.eval.extrapolation
        windows = sorted({training_window, *(multiple * training_window for multiple in options.multiples)})
        if self.documents is None:
            self.documents = held_out_documents(config, windows)
        with self.runner.eval_module() as module:
            borrowed: Any = module
            position, visibility = borrowed.position, borrowed.visibility
            try:
                found = extrapolate(
                    module,
                    self.documents,
                    variants(config),
                    run=config.run.name,
                    windows=windows,
                    training_window=training_window,
                    micro_batch_tokens=options.micro_batch_tokens,
                )
            finally:
                borrowed.position, borrowed.visibility = position, visibility
        cells = [cell for cell in found.cells if cell.source == found.pooled]
        losses = {f"probe/{cell.variant}/{cell.window}": cell.result.loss for cell in cells}
        return losses | {"probe/training_window": float(training_window)}

    def _say(self, message: str) -> None:
        if not self.said:
            dist.log(message)
        self.said = True
