"""Documents that are read from their beginning, the same ones at every length of the grid."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coca_train.evals.extrapolation import positions_needed
from coca_train.evals.results import Point
from coca_train.evaluation.subject import Around, Subject
from coca_train.evaluation.texts import tokenised


@dataclass(frozen=True, kw_only=True)
class Reading:
    """texts: all sources', one after the other; sources: of each text. longest: how far all of them reach, which is
    `longest` predictions, so longest + 1 tokens; 0: there are none."""

    texts: Sequence[np.ndarray]
    sources: Sequence[str]
    longest: int
    digest: str

    def problem(self, subject: Subject, point: Point) -> str:
        """Why this length cannot be read by the model as it stands, in words; "" when it can."""
        length = int(point)
        if length > self.longest:
            return f"no document has {length + 1:,} tokens"
        limit = subject.model.position.max_positions
        if limit is not None and positions_needed(subject.model, length) > limit:
            return f"{subject.model.position.settings.scheme} has {limit:,} positions"
        return ""

    def batches(self, length: int, micro_batch_tokens: int) -> list[list[int]]:
        """Indices of texts that are read together; the same for every world size, so that all sizes round alike."""
        size = max(1, micro_batch_tokens // length)
        return [list(range(i, min(i + size, len(self.texts)))) for i in range(0, len(self.texts), size)]


def longest_reading(subject: Subject, around: Around, max_documents: int) -> Reading:
    """Documents with as many tokens as the longest point that some document reaches."""
    for length in sorted((int(point) for point in around.points), reverse=True):
        texts = tokenised(subject, around, length + 1, max_documents)
        if any(texts.documents.values()):
            return Reading(
                texts=[document for documents in texts.documents.values() for document in documents],
                sources=[source for source, documents in texts.documents.items() for _ in documents],
                longest=length,
                digest=texts.digest,
            )
    return Reading(texts=(), sources=(), longest=0, digest="")
