"""Suites that read documents from their beginning in one window, the same ones at every length of the grid."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch

from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.results import Point, Result
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite, Part, Settings
from coca_train.evaluation.texts import Library, digest
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist

Kept = TypeVar("Kept")


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
        """Digest what a window of this length reads and predicts."""
        return digest({source: [d[: length + 1] for d in documents] for source, documents in self.documents.items()})

    def problem(self, subject: Subject, length: int) -> str:
        """Say why the model under its present variant cannot read this length; "" when it can."""
        if length > self.longest:
            return f"no document has {length + 1:,} tokens"
        return missing_positions(subject.model, length)

    def batches(self, length: int, micro_batch_tokens: int) -> list[list[int]]:
        """Return the indices of texts that are read together."""
        size, n = max(1, micro_batch_tokens // length), len(self.texts)
        return [list(range(i, min(i + size, n))) for i in range(0, n, size)]

    def share(self, length: int, setup: Setup, ranks_of_a_window: int = 1) -> Iterator[list[int]]:
        """Yield this rank's batches, and report each when it is done."""
        # Whole batches are dealt out, not texts: cut the same for every number of ranks, all of them round alike.
        first, step = dist.reader(ranks_of_a_window)
        mine = self.batches(length, setup.micro_batch_tokens)[first::step]
        for done, batch in enumerate(mine, 1):
            yield batch
            setup.progress(done / len(mine))

    def by_document(
        self, model: Transformer, length: int, setup: Setup, keep: Callable[[np.ndarray], Kept]
    ) -> dict[str, Kept]:
        """Return by index what `keep` makes of the NLL of the first `length` predictions, nll_T, of this rank's
        documents."""
        documents: dict[str, Kept] = {}
        shared = model.sequence
        for batch in self.share(length, setup, 1 if shared is None else shared.size):
            nll_BT = first_window_nll(model, [self.texts[i] for i in batch], length)
            documents |= {str(i): keep(nll_T) for i, nll_T in zip(batch, nll_BT, strict=True)}
        return documents


def first_window_nll(model: Transformer, documents: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Return the NLL [nats] of the first `length` predictions of documents with more tokens, nll_BT in float64."""
    device = next(model.parameters()).device
    window_BT = torch.from_numpy(np.stack([d[: length + 1] for d in documents]).astype(np.int64)).to(device)
    with evaluating(model):
        pos_1T = torch.arange(length, device=device)[None]
        return model.losses(window_BT[:, :-1], window_BT[:, 1:], pos_BT=pos_1T, length=length).double().cpu().numpy()


def in_order(parts: Mapping[str, Kept]) -> list[Kept]:
    """Return what all ranks kept of each document by its index, in the order of the documents."""
    return [parts[str(index)] for index in range(len(parts))]


def read_longest(subject: Subject, setup: Setup, lengths: Sequence[int], lengths_from: str = "") -> Prefixes:
    """Choose documents with more tokens than the longest of these lengths that any document has.

    lengths_from: the option they come from. Raises DataError E-EVAL-05 when none is long enough for the shortest.
    """
    library = Library(subject, setup)
    longest = max((length for length in lengths if length < library.longest), default=min(lengths))
    return Prefixes(documents=library.choose(longest + 1, lengths_from).documents, longest=longest)


class DocumentSuite(CellSuite[Settings, Prefixes, Part, Result], Generic[Settings, Part, Result]):
    """Reads the first tokens of documents in one window; points are lengths, or settings of one length. LENGTHS_FROM:
    the option that lengths come from, for messages, where those are not the points."""

    LENGTHS_FROM: ClassVar[str] = ""

    def length(self, point: Point) -> int:
        """Return how many predictions of a document a cell makes."""
        return int(point)

    def prepare(self, subject: Subject, setup: Setup) -> Prefixes:
        return read_longest(subject, setup, [self.length(point) for point in setup.points], self.LENGTHS_FROM)

    def work(self, subject: Subject, points: Sequence[Point], material: Prefixes) -> list[float]:
        """Estimate the work [tokens]."""
        return [float(self.length(point) * len(material.texts)) for point in points]

    def fingerprint(self, material: Prefixes, point: Point) -> str:
        return material.digest(self.length(point))

    def impossible(self, subject: Subject, point: Point, material: Prefixes) -> str:
        return material.problem(subject, self.length(point))
