"""What suites share that read documents from their beginning in one window, the same ones at every length of the grid.

A suite that does no more takes `prepare`, `work` and `fingerprint` of the contract from here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coca_train.evaluation.measures.first_window import first_window_nll
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.texts import Library, digest
from coca_train.runtime import dist


@dataclass(frozen=True, kw_only=True)
class Prefixes:
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
        return missing_positions(subject.model, length)

    def batches(self, length: int, micro_batch_tokens: int) -> list[list[int]]:
        """Indices of texts that are read together."""
        size, n = max(1, micro_batch_tokens // length), len(self.texts)
        return [list(range(i, min(i + size, n))) for i in range(0, n, size)]

    def share(self, length: int, setup: Setup, ranks_of_a_window: int = 1) -> Iterator[list[int]]:
        """This rank's batches, and word of each when it is done."""
        # Whole batches are dealt out, not texts: cut the same for every number of ranks, all of them round alike.
        first, step = dist.reader(ranks_of_a_window)
        mine = self.batches(length, setup.micro_batch_tokens)[first::step]
        for done, batch in enumerate(mine, 1):
            yield batch
            setup.progress(done / len(mine))

    def by_document(
        self, model: Any, length: int, setup: Setup, kept: Callable[[np.ndarray], list[float]]
    ) -> dict[str, list[float]]:
        """Of this rank's documents, by index: what `kept` keeps of the NLL of the first `length` predictions, nll_T."""
        documents: dict[str, list[float]] = {}
        shared = model.sequence
        for batch in self.share(length, setup, 1 if shared is None else shared.size):
            nll_BT = first_window_nll(model, [self.texts[i] for i in batch], length)
            documents |= {str(i): kept(nll_T) for i, nll_T in zip(batch, nll_BT, strict=True)}
        return documents


def in_order(parts: Iterable[Mapping[str, Any]]) -> list[Any]:
    """What all ranks kept of each document by its index, in the order of the documents."""
    documents = {index: kept for part in parts for index, kept in part.items()}
    return [documents[str(index)] for index in range(len(documents))]


def prepare(settings: Any, subject: Subject, setup: Setup) -> Prefixes:
    """Documents with more tokens than the longest point that any document has, evenly chosen.

    Raises DataError E-EVAL-05 when none is long enough for the shortest point.
    """
    return read_longest(subject, setup, [int(point) for point in setup.points])


def read_longest(subject: Subject, setup: Setup, lengths: Sequence[int], lengths_from: str = "") -> Prefixes:
    """Documents with more tokens than the longest of these lengths that any document has (errors: as above)."""
    library = Library(subject, setup)
    longest = max((length for length in lengths if length < library.longest), default=min(lengths))
    return Prefixes(documents=library.choose(longest + 1, lengths_from).documents, longest=longest)


def work(settings: Any, subject: Subject, points: Sequence[int], material: Prefixes) -> list[float]:
    """[tokens]"""
    return [float(point * len(material.texts)) for point in points]


def fingerprint(material: Prefixes, point: int) -> str:
    return material.digest(point)
