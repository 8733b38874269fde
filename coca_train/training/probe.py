"""The extrapolation probe: how far context reaches, every so many steps of the training.

Definition. On `eval.extrapolation.probe_documents` held-out documents of each source, the same ones every time, and
with the windows of the final report and the training window, the loss of the trained variant and of every choice of
`eval.extrapolation.frequencies`, all sources together: cells of the same grid (training/reach.py). Records:
`probe/<variant>/<window>`, mean NLL [nats per token] (perplexity is its exponential); `probe/training_window` [tokens];
`probe/seconds`, what this probe took; `probe/share`, all probes' part of the time since the stage began to train here.

It reads weights and gives back what it borrows: the position scheme and the visibility of the model are the very
same objects afterwards, nothing is drawn at random, and the optimizer is not touched. Training goes on bit for bit
as without it. Time is that of rank 0; it is not in tokens_per_s.
"""

import time
from collections.abc import Mapping

from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import Engine
from coca_train.evaluation.grid import Progress
from coca_train.evaluation.variants import AS_TRAINED, after_training
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.training.reach import Reach


class Probe:
    """Measures when it is called. config: the stage's. held_out: files by source. start_step: step of the run from
    which it trains here."""

    def __init__(
        self,
        config: Config,
        runner: Engine,
        tokenizer: Tokenizer,
        held_out: Mapping[str, IndexedDataset],
        start_step: int,
    ) -> None:
        self.config, self.held_out = config, held_out
        self.runner, self.tokenizer, self.start_step = runner, tokenizer, start_step
        self.began, self.seconds = time.perf_counter(), 0.0
        self.reach: Reach | None = None
        self.announced = False  # what it costs
        self.reason = ""  # why there was nothing to measure, as it was said

    def __call__(self, step: int) -> dict[str, float]:
        """The record of this step; empty when nothing can be scored. COLLECTIVE."""
        started = time.perf_counter()
        try:
            losses = self._measure(step)
        except UserError as error:
            if str(error) != self.reason:
                dist.log(f"WARNING: no extrapolation probe: {error}")
            self.reason = str(error)
            return {}
        seconds = time.perf_counter() - started
        training = started - self.began - self.seconds
        self.seconds += seconds
        every = self.config.eval.extrapolation.every_steps
        # Without the probes themselves: what they cost is told against the time of training alone.
        between = training / (step - self.start_step) * every
        cost = seconds / (seconds + between)
        if not self.announced:
            dist.log(f"probe     takes {seconds:.1f} s every {every:,} steps, {cost:.1%} of the training")
        self.announced = True
        share = self.seconds / (self.seconds + training)
        return losses | {"probe/seconds": seconds, "probe/share": share}

    def _measure(self, step: int) -> dict[str, float]:
        """The losses, and the training window. UserError when there are none."""
        config, training_window = self.config, self.config.train.seq_len
        if self.reach is None:
            options = config.eval.extrapolation
            windows = (multiple * training_window for multiple in (1, *options.multiples))
            tried = [choice for choice in after_training(config) if choice.visibility == AS_TRAINED]
            self.reach = Reach(config, self.tokenizer, self.held_out, windows, tried, options.probe_documents)
        with self.runner.eval_module() as module:
            _, cells = self.reach.measure(module, Progress(shown=False), path="", step=step, weights="")
        losses = {}
        for cell in cells:
            if cell.status == "done":
                pooled = list(cell.result["sources"].values())[-1]
                losses[f"probe/{cell.variant}/{cell.point}"] = pooled["nll_sum"] / pooled["n_tokens"]
        if not losses:
            raise UserError(cells[0].reason)
        return losses | {"probe/training_window": float(training_window)}
