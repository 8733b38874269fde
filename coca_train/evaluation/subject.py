"""A model under evaluation, and what a suite is told besides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.results import Measured, Point
from coca_train.evaluation.variants import Variant
from coca_train.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in evaluation mode, on its device. While a cell is measured, the cell's variant is put on it.

    variants: of the grid, by name.
    """

    facts: Measured
    path: Path
    model: Transformer
    tokenizer: Tokenizer
    variants: Mapping[str, Variant]

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def training_window(self) -> int:
        """[tokens]"""
        return self.facts.training_window


@dataclass(frozen=True, kw_only=True)
class Around:
    """What all cells share.

    points: of the grid, ascending where they are lengths. texts: documents by source, as plain text, read when first
    asked for. token_files: documents by source in the model's own tokens, instead of texts. lengths_from: the option
    that lengths come from, for messages. progress: told what share of the cell is done (0 to 1).
    """

    points: tuple[Point, ...]
    texts: Callable[[], Mapping[str, list[str]]]
    max_documents: int  # of each source
    seed: int
    micro_batch_tokens: int  # positions a forward pass may hold, all rows together
    token_files: Mapping[str, IndexedDataset] = field(default_factory=dict)
    lengths_from: str = "grid.lengths"
    progress: Callable[[float], None] = lambda share: None
