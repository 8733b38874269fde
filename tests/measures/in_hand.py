"""A model in hand under suite perplexity, as a training measures its own."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from coca_train.evaluation.grid import Progress, measure_cells
from coca_train.evaluation.results import Cell
from coca_train.evaluation.subject import Setup, borrow_model
from coca_train.evaluation.suites.perplexity import Evaluator
from coca_train.evaluation.variants import Variant
from coca_train.training.reach import SEED, SETTINGS


class Letters:
    """Four bytes a token."""

    bos, digest = None, "letters"

    def decode(self, tokens: Sequence[int]) -> str:
        return "abcd" * len(tokens)


class Found:
    """Cells by variant and window."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = {(cell.variant, cell.point): cell for cell in cells}

    def result(self, source: str, variant: str, window: int) -> Any:
        """Of one text; None where the cell has none."""
        cell = self.cells[variant, window]
        return SimpleNamespace(**cell.result["sources"][source]) if cell.status == "done" else None

    def reasons(self) -> dict[tuple[str, Any], str]:
        return {place: cell.reason for place, cell in self.cells.items() if cell.status != "done"}


class TokenFile:
    """An IndexedDataset in memory."""

    def __init__(self, documents: Sequence[np.ndarray]) -> None:
        self.documents = documents

    def document_bounds(self) -> np.ndarray:
        return np.cumsum([0, *map(len, self.documents)])

    def document(self, i: int) -> np.ndarray:
        return self.documents[i]


def in_hand(
    model: Any,
    documents: Mapping[str, Sequence[np.ndarray]],
    tried: Mapping[str, Variant],
    windows: Sequence[int],
    training_window: int,
    progress: Progress | None = None,
) -> Found:
    files: Any = {source: TokenFile(texts) for source, texts in documents.items()}
    setup = Setup(
        points=tuple(windows), texts=dict, token_files=files, max_documents=100, seed=SEED, micro_batch_tokens=128
    )
    position = SimpleNamespace(scheme=model.position.settings.scheme)
    config: Any = SimpleNamespace(position=position, train=SimpleNamespace(seq_len=training_window))
    known = {"name": "r", "path": "", "step": 1, "weights": ""}
    tokenizer: Any = Letters()
    with borrow_model(model, config, tokenizer, tried, **known) as subject:
        return Found(measure_cells([(Evaluator(SETTINGS), setup)], subject, None, progress or Progress(shown=False)))
