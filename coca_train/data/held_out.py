"""Held-out text of a stage: checked when the training starts, and the same at every validation.

Shapes: B sequences, T tokens (seq_len).
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from coca_train.config.schema import DataConfig
from coca_train.data.answers import marks_of, score_answers
from coca_train.data.batch import Batch, collate
from coca_train.data.dataset import IndexedDataset
from coca_train.data.masking import Masking
from coca_train.data.mixture import check_tokenizer, file_digests
from coca_train.data.packing import Row, Windows, checked_row
from coca_train.data.storage import Digest


class HeldOut:
    """The held-out files of a data section by source, open for the whole stage.

    Raises DataError as IndexedDataset does, and E-TOK-11 for another tokenizer's data.
    """

    def __init__(self, config: DataConfig) -> None:
        self.document_mask, self.marks = config.document_mask, marks_of(config)
        self.masking = Masking(config) if config.objective.name == "masked_token" else None
        self.files: dict[str, IndexedDataset] = {}
        for name, source in config.sources.items():
            if source.valid_path is not None:
                check_tokenizer(config.tokenizer, f"data.sources.{name}.valid_path", source.valid_path)
                self.files[name] = IndexedDataset(source.valid_path, config.verify_blocks)

    def fingerprint(self) -> dict[str, dict[str, Digest]]:
        """Return what the files are, as JSON by source, without their paths; digests as in `Mixture.fingerprint`."""
        digests = file_digests(self.files.values())
        return {name: {"bin": digests[one.bin_path], "idx": digests[one.idx_path]} for name, one in self.files.items()}


class Validation:
    """The windows of the validations, spread evenly over each file: at most max_tokens [targets] of a source, at least
    one window; plain ones whatever data.packing is, so that losses of different runs can be compared.

    All are read and checked here, before the first step, and stay in memory [each token as wide as in the
    file, shared by the ranks]: a file that is damaged later costs no work, and every validation scores the same text.

    Raises DataError: E-TOK-08 damaged block, 09 an id beyond vocab_size (None: no check), 12 too short for a window.
    """

    def __init__(
        self,
        held_out: HeldOut,
        seq_len: int,
        max_tokens: int,
        micro_batch_size: int,
        vocab_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.held_out, self.micro_batch_size = held_out, micro_batch_size
        self._rows: dict[str, list[tuple[int, Row]]] = {}  # each with its window
        for name, file in held_out.files.items():
            # An answer is scored with its prompt in the window.
            source = Windows(file, f"{name}, held out", seq_len, held_out.document_mask, held_out.marks is not None)
            n_windows = max(1, min(source.n_windows, max_tokens // seq_len))
            rows = []
            for begin in range(0, n_windows, micro_batch_size * world_size):
                first = begin + rank * micro_batch_size
                for i in range(first, first + micro_batch_size):
                    window = i * source.n_windows // n_windows if i < n_windows else 0
                    row = checked_row(source, window, vocab_size)
                    # The file's own dtype: a quarter of int64.
                    row = row._replace(ids=row.ids.astype(file.dtype))
                    rows.append((window, row if i < n_windows else row._replace(scored=0)))
            self._rows[name] = rows

    def batches(self) -> Mapping[str, Iterable[Batch]]:
        """Return this rank's batches by source.

        Every rank gets the same number of batches of the same shape (ZeRO-3 needs that); rows beyond the last
        window are padding: all their targets are -100. The scored windows do not depend on the world size.
        """
        return {name: self._collated(name, rows) for name, rows in self._rows.items()}

    def _collated(self, name: str, rows: list[tuple[int, Row]]) -> Iterator[Batch]:
        marks, masking = self.held_out.marks, self.held_out.masking
        for begin in range(0, len(rows), self.micro_batch_size):
            part = rows[begin : begin + self.micro_batch_size]
            batch = collate([row._replace(ids=row.ids.astype(np.int64)) for _, row in part])
            if marks is not None:
                batch = score_answers(batch, marks)
            if masking is not None:  # the same tokens at every validation, of every run
                batch = masking(batch, [f"held out {name} {window}" for window, _ in part])
            yield batch
