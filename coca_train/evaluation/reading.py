"""Documents that are read from their beginning in one window, the same ones at every length of the grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coca_train.evaluation.measures.windows import positions_needed
from coca_train.evaluation.subject import Around, Subject
from coca_train.evaluation.texts import Library, digest


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Documents by source that all have more than `longest` tokens, so that they have `longest` predictions."""

    documents: Mapping[str, Sequence[np.ndarray]]
    longest: int

    @property
    def texts(self) -> list[np.ndarray]:
        """All sources', one after the other."""
        return [document for documents in self.documents.values() for document in documents]

    def digest(self, length: int) -> str:
        """Of what a window of this length reads and predicts."""
        return digest({source: [d[: length + 1] for d in documents] for source, documents in self.documents.items()})

    def problem(self, subject: Subject, length: int) -> str:
        """Why this length cannot be read by the model as it stands, in words; "" when it can."""
        if length > self.longest:
            return f"no document has {length + 1:,} tokens"
        limit = subject.model.max_positions
        if limit is not None and positions_needed(subject.model, length) > limit:
            return f"{subject.model.position.settings.scheme} has {limit:,} positions"
        return ""

    def batches(self, length: int, micro_batch_tokens: int) -> list[list[int]]:
        """Indices of texts that are read together; the same for every world size, so that all sizes round alike."""
        size, n = max(1, micro_batch_tokens // length), len(self.texts)
        return [list(range(i, min(i + size, n))) for i in range(0, n, size)]


def read_whole_grid(subject: Subject, around: Around) -> Reading:
    """Documents with more tokens than the longest point that any document has, evenly chosen.

    Raises DataError E-EVAL-05 when none is long enough for the shortest point.
    """
    return read_longest(subject, around, [int(point) for point in around.points])


def read_longest(subject: Subject, around: Around, lengths: Sequence[int], lengths_from: str = "") -> Reading:
    """Documents with more tokens than the longest of these lengths that any document has (errors: as above)."""
    library = Library(subject, around)
    longest = max((length for length in lengths if length < library.longest), default=min(lengths))
    return Reading(documents=library.choose(longest + 1, lengths_from).documents, longest=longest)
