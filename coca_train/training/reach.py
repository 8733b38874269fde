"""How far the context of a model in training reaches: the grid of suite perplexity on the engine's own weights, in the
final report and every so many steps of the training.

Documents are cut to the longest window that enough of them fill, so all windows score the very same predictions; the
stride is the training window. Variants: as trained, then the choices of `eval.extrapolation` on the same weights.
"""

import time
from collections.abc import Iterable, Mapping

from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import Engine
from coca_train.evaluation.grid import Progress, Store, measure_cells
from coca_train.evaluation.measures.perplexity import RESAMPLES
from coca_train.evaluation.results import Cell, Measured
from coca_train.evaluation.subject import Setup, borrow_model
from coca_train.evaluation.suites.perplexity import Evaluator, Settings
from coca_train.evaluation.variants import AS_TRAINED, Choice, after_training, variants
from coca_train.evaluation.verdict import HOLDS_WITHIN, USES_GAIN
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.runtime.errors import DataError, UserError

SETTINGS = Settings(
    suite="perplexity",
    stride=None,
    document_tokens="longest",
    min_document_tokens=None,
    weighting="tokens",
    window_counts="predictions",
    begin_windows=False,
    last=None,
    bootstrap_resamples=RESAMPLES,
    holds_within=HOLDS_WITHIN,
    uses_gain=USES_GAIN,
)
SEED = 0  # of the bootstrap


class Reach:
    """The evaluation grid of a stage's model, to be measured at any step of it.

    config: the stage's. held_out: files by source. windows [tokens]. tried: see evaluation/variants.py. max_documents:
    of all sources together. Raises DataError E-EVAL-04 without held-out text.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        held_out: Mapping[str, IndexedDataset],
        windows: Iterable[int],
        tried: Iterable[Choice],
        max_documents: int,
    ) -> None:
        if not held_out:
            raise DataError("E-EVAL-04 data.sources: no source has held-out text. Fix: data.sources.<name>.valid_path")
        self.config, self.tokenizer = config, tokenizer
        self.windows = tuple(sorted(set(windows)))
        self.variants = variants(config, tried)
        self.setup = Setup(
            points=self.windows,
            texts=dict,
            token_files=held_out,
            lengths_from="eval.extrapolation.multiples",
            enough=True,
            max_documents=max_documents,
            seed=SEED,
            micro_batch_tokens=config.eval.extrapolation.micro_batch_tokens,
        )

    def measure(
        self, module: Transformer, progress: Progress, store: Store | None = None, *, path: str, step: int, weights: str
    ) -> tuple[Measured, list[Cell]]:
        """COLLECTIVE. Return the facts of the model, and its cells.

        path, step, weights: what is said of the model (results.Measured).

        Raises DataError E-EVAL-05 when no document is long enough for the shortest window.
        """
        known = {"name": self.config.run.name, "path": path, "step": step, "weights": weights}
        with borrow_model(module, self.config, self.tokenizer, self.variants, **known) as subject:
            return subject.facts, measure_cells([(Evaluator(SETTINGS), self.setup)], subject, store, progress)


class Probe:
    """The extrapolation probe: measures, when it is called, how far the context reaches.

    Definition. On `eval.extrapolation.probe_documents` held-out documents of each source, the same ones every time, and
    with the windows of the final report and the training window, the loss of the trained variant and of every choice of
    `eval.extrapolation.rope_scalings`, all sources together: cells of the same grid. Records:
    `probe/<variant>/<window>`, mean NLL [nats per token] (perplexity is its exponential); `probe/training_window`
    [tokens]; `probe/seconds`, what this probe took; `probe/share`, all probes' part of the time since the stage began
    to train here.

    It reads weights and gives back what it borrows: the position scheme and the attention pattern of the model are the
    very same objects afterwards, nothing is drawn at random, and the optimizer is not touched. Training goes on bit for
    bit as without it. Time is that of rank 0; it is not in tokens_per_s.

    config: the stage's. held_out: files by source. start_step: step of the run from which this process trains.
    """

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
        """COLLECTIVE. Return the record of this step; empty when nothing can be scored."""
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
        # Without the probes themselves: their cost is compared with the time of training alone.
        between = training / (step - self.start_step) * every
        cost = seconds / (seconds + between)
        if not self.announced:
            dist.log(f"probe     takes {seconds:.1f} s every {every:,} steps, {cost:.1%} of the training")
        self.announced = True
        share = self.seconds / (self.seconds + training)
        return losses | {"probe/seconds": seconds, "probe/share": share}

    def _measure(self, step: int) -> dict[str, float]:
        """Return the losses and the training window. Raises UserError when there are none."""
        config, training_window = self.config, self.config.train.seq_len
        if self.reach is None:
            options = config.eval.extrapolation
            windows = (multiple * training_window for multiple in (1, *options.multiples))
            tried = [choice for choice in after_training(config) if choice.attention_pattern == AS_TRAINED]
            self.reach = Reach(config, self.tokenizer, self.held_out, windows, tried, options.probe_documents)
        with self.runner.eval_module() as module:
            assert isinstance(module, Transformer)
            _, cells = self.reach.measure(module, Progress(shown=False), path="", step=step, weights="")
        losses = {}
        for cell in cells:
            if cell.result is not None:
                pooled = list(cell.result["sources"].values())[-1]
                losses[f"probe/{cell.variant}/{cell.point}"] = pooled["nll_sum"] / pooled["n_tokens"]
        if not losses:
            raise UserError(cells[0].reason)
        return losses | {"probe/training_window": float(training_window)}
