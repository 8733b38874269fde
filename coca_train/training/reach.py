"""How far a model in training reaches: the grid of suite perplexity, with the model in hand.

Documents are cut to the longest window that enough of them fill, so all windows score the very same predictions; the
stride is the training window. Variants: as trained, then the choices of `eval.extrapolation` on the same weights.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.grid import Progress, Store, measure_cells
from coca_train.evaluation.measures.perplexity import RESAMPLES
from coca_train.evaluation.results import Cell, Measured
from coca_train.evaluation.subject import Setup, lent
from coca_train.evaluation.suites.perplexity import Evaluator, Settings
from coca_train.evaluation.variants import Choice, variants
from coca_train.evaluation.verdict import HOLDS_WITHIN, USES_GAIN
from coca_train.runtime.errors import DataError

SETTINGS = Settings(
    suite="perplexity",
    stride=None,
    document_tokens="longest",
    min_document_tokens=None,
    weighting="tokens",
    window_counts="predictions",
    begin_windows=False,
    bootstrap_resamples=RESAMPLES,
    holds_within=HOLDS_WITHIN,
    uses_gain=USES_GAIN,
)
SEED = 0  # of the bootstrap


class Reach:
    """The grid of a stage's model, ready to be measured at any step of it.

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
        self, module: Any, progress: Progress, store: Store | None = None, **known: Any
    ) -> tuple[Measured, list[Cell]]:
        """The model and its cells. COLLECTIVE. module: a Transformer in evaluation mode. known: path, step and weights.

        Raises DataError E-EVAL-05 when no document is long enough for the shortest window.
        """
        known |= {"name": self.config.run.name}
        with lent(module, self.config, self.tokenizer, self.variants, **known) as subject:
            return subject.facts, measure_cells([(Evaluator(SETTINGS), self.setup)], subject, store, progress)
