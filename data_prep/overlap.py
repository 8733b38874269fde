"""Runs of n words as 64-bit numbers, vectorised: the same words in a row give the same number in any document.

A word is a run of letters, marks and digits (Unicode categories L, M, N) of the lower-cased text; everything else,
the underscore too, parts words and is not looked at. So "Don't stop" is the three words don, t, stop. Two different
runs get the same number with probability 2^-64.
"""

import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coca_train.data.dataset import IndexedDataset
from coca_train.data.sampling import mix
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.workers import map_ordered

if TYPE_CHECKING:
    from tqdm import tqdm

BASE = np.uint64(0x9E3779B97F4A7C55)  # odd, so that no power of it vanishes modulo 2^64
STEP = np.uint64(0xD6E8FEB86659FD93)
PIECE = 1 << 18  # tokens decoded at a time, of one document
TOGETHER = PIECE  # tokens decoded at a time, of several documents


@cache
def _word_table() -> np.ndarray:
    """bool (0x110000,): whether a code point belongs to a word."""
    return np.array([unicodedata.category(chr(point))[0] in "LMN" for point in range(0x110000)])


def words(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hash the words of all texts in a row: uint64 (w,), and how many each text has: int64 (len(texts),).

    A word is hashed as a polynomial in BASE over its code points, modulo 2^64, then mixed.
    """
    lowered = [text.lower() for text in texts]
    chars = np.frombuffer("\n".join(lowered).encode("utf-32-le"), "<u4")
    inside = _word_table()[chars]
    edges = np.diff(inside.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    bounds = np.cumsum([len(text) + 1 for text in lowered])
    counts = np.diff(np.searchsorted(starts, bounds), prepend=0)
    if not len(starts):
        return np.empty(0, np.uint64), counts
    lengths = stops - starts
    firsts = np.cumsum(lengths) - lengths  # of each word among the characters of words
    places = np.arange(lengths.sum()) - np.repeat(firsts, lengths)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), BASE))
    return mix(np.add.reduceat(chars[inside] * powers[places], firsts)), counts


def ngrams(hashes: np.ndarray, n: int) -> np.ndarray:
    """Return a number for each n words in a row, from the first word on: uint64 (max(0, w - n + 1),)."""
    size = max(0, len(hashes) - n + 1)
    numbers = np.zeros(size, np.uint64)
    for k in range(n):
        numbers = numbers * STEP + hashes[k : k + size]
    return numbers


def ngrams_of_texts(texts: list[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the n-grams of each text, none across two: uint64 (g,) numbers, and int64 (g,) the text of each,
    rising."""
    hashes, counts = words(texts)
    text_of_word = np.repeat(np.arange(len(texts)), counts)
    whole = text_of_word[: max(0, len(hashes) - n + 1)] == text_of_word[n - 1 :]
    return ngrams(hashes, n)[whole], text_of_word[: len(whole)][whole]


def ngrams_of_tokens(ids: np.ndarray, tokenizer: Tokenizer, n: int) -> np.ndarray:
    """Return the n-grams of one document of any length, uint64 (g,), decoded piece by piece. ids: int64 (tokens,)."""
    return ngrams(np.concatenate([words([text])[0] for text in pieces(ids, tokenizer)]), n)


def pieces(ids: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of a document in pieces of at most PIECE tokens, cut where a token begins with white space.

    So no word is cut, unless PIECE tokens in a row have no white space.
    """
    start = 0
    while len(ids) - start > PIECE:
        stop = start + PIECE
        stop = next((at for at in range(stop, start, -1) if _begins_with_space(int(ids[at]), tokenizer)), stop)
        yield tokenizer.decode(ids[start:stop].tolist())
        start = stop
    yield tokenizer.decode(ids[start:].tolist())


def _begins_with_space(token: int, tokenizer: Tokenizer) -> bool:
    """Some tokenizers drop white space where a text begins, so it is looked for between two of the same."""
    return tokenizer.decode([token, token])[len(tokenizer.decode([token])) :][:1].isspace()


STRETCH = 1 << 20  # tokens of documents that go to a worker at a time
SIEVE_BITS = 24  # of a number; tells most n-grams that are not held out without a search
WORST = 20  # documents of a held-out set that are named


@dataclass(frozen=True)
class Worst:
    """A held-out document. share: of its n-grams that source has; most: the training document with most of them."""

    document: int
    ngrams: int
    share: float
    most: int | None


@dataclass(frozen=True)
class Overlap:
    """Source (None: any) against a held-out set. short: documents with fewer than n words; found: of all ngrams.

    above: documents with more than the share asked about; worst: the highest shares, none of them 0.
    """

    source: str | None
    held_out: str
    documents: int
    short: int
    ngrams: int
    found: int
    above: int
    worst: list[Worst]

    @property
    def share(self) -> float:
        return self.found / self.ngrams if self.ngrams else 0.0


def stretches(data: IndexedDataset, tokens: int) -> Iterator[tuple[int, int]]:
    """Yield (first, stop) of documents that begin within the same `tokens` tokens, from the first to the last
    document."""
    first = 0
    for end in range(tokens, data.n_tokens + tokens, tokens):
        stop = data.n_documents if end >= data.n_tokens else data.document_at(end - 1) + 1
        if stop > first:
            yield first, stop
        first = stop


def document_ngrams(
    data: IndexedDataset, first: int, stop: int, tokenizer: Tokenizer, n: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (n-grams, document of each) of documents first .. stop - 1, decoded about TOGETHER tokens at a time."""
    texts: list[str] = []
    held = 0
    for document in range(first, stop):
        ids = data.document(document)
        if texts and held + len(ids) > TOGETHER:
            numbers, text = ngrams_of_texts(texts, n)
            yield numbers, text + (document - len(texts))
            texts, held = [], 0
        if len(ids) > TOGETHER:
            numbers = ngrams_of_tokens(ids, tokenizer, n)
            yield numbers, np.full(len(numbers), document)
        else:
            texts.append(tokenizer.decode(ids.tolist()))
            held += len(ids)
    if texts:
        numbers, text = ngrams_of_texts(texts, n)
        yield numbers, text + (stop - len(texts))


class HeldOut:
    """The n-grams of one held-out set. bounds: int64 (documents + 1,), those of document d are bounds[d] .. [d + 1]."""

    def __init__(self, name: str, data: IndexedDataset, tokenizer: Tokenizer, n: int) -> None:
        self.name = name
        parts, counts = [np.empty(0, np.uint64)], np.zeros(data.n_documents, np.int64)
        for numbers, documents in document_ngrams(data, 0, data.n_documents, tokenizer, n):
            parts.append(numbers)
            counts += np.bincount(documents, minlength=data.n_documents)
        self.numbers = np.concatenate(parts)
        self.bounds = np.concatenate(([0], np.cumsum(counts)))

    def overlap(self, source: str | None, places: np.ndarray, first_seen: np.ndarray, max_share: float) -> Overlap:
        """Return its overlap with a source.

        places: of its numbers in the sorted array; first_seen: training document by place, -1 = nowhere.
        """
        seen = first_seen[places]
        sums = np.concatenate(([0], np.cumsum(seen >= 0)))
        hits, n = np.diff(sums[self.bounds]), np.diff(self.bounds)
        shares = hits / np.maximum(n, 1)
        worst = []
        for document in np.lexsort((np.arange(len(n)), -shares))[:WORST]:
            if hits[document]:
                mine, most = seen[self.bounds[document] : self.bounds[document + 1]], None
                if source is not None:
                    others, counts = np.unique(mine[mine >= 0], return_counts=True)
                    most = int(others[counts.argmax()])
                worst.append(Worst(int(document), len(mine), float(shares[document]), most))
        above = int((shares > max_share).sum())
        return Overlap(source, self.name, len(n), int((n == 0).sum()), int(n.sum()), int(hits.sum()), above, worst)


class Scanner:
    """What a worker does: which held-out n-grams occur in a stretch of training documents.

    numbers_path: .npy of the sorted numbers (memory-mapped, so all workers share it). Called with (prefix, first,
    stop); gives int64 places among them, each once, rising, and int64 documents, the first that each occurs in.
    """

    def __init__(self, tokenizer: str, numbers_path: str, n: int) -> None:
        self._tokenizer, self._n = Tokenizer(tokenizer), n
        self._numbers = np.load(numbers_path, mmap_mode="r", allow_pickle=False)
        self._sieve = np.zeros(1 << SIEVE_BITS, bool)
        self._sieve[self._numbers >> np.uint64(64 - SIEVE_BITS)] = True
        self._opened: dict[str, IndexedDataset] = {}

    def __call__(self, task: tuple[str, int, int]) -> tuple[np.ndarray, np.ndarray]:
        prefix, first, stop = task
        if prefix not in self._opened:
            self._opened = {prefix: IndexedDataset(prefix)}
        places, documents = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for numbers, document in document_ngrams(self._opened[prefix], first, stop, self._tokenizer, self._n):
            # Nearly no n-gram of training text is held out; one look into 16 MB spares most of them the binary search.
            likely = self._sieve[numbers >> np.uint64(64 - SIEVE_BITS)]
            numbers, document = numbers[likely], document[likely]
            at = np.searchsorted(self._numbers, numbers)
            hit = self._numbers[np.minimum(at, len(self._numbers) - 1)] == numbers
            places.append(at[hit])
            documents.append(document[hit])
        unique, index = np.unique(np.concatenate(places), return_index=True)
        return unique, np.concatenate(documents)[index]


def overlaps(
    trained: dict[str, IndexedDataset],
    held_out: dict[str, IndexedDataset],
    tokenizer: Tokenizer,
    n: int,
    max_share: float,
    scratch: Path,
    workers: int | None,
    bar: "tqdm",
) -> list[Overlap]:
    """Measure every source against every held-out set, then all sources together (source None), in the given orders.

    scratch: folder for a file that the workers share; bar: counts the tokens that are done. Raises DataError E-TOK-17
    when no held-out document has n words.
    """
    sets = [HeldOut(name, data, tokenizer, n) for name, data in held_out.items()]
    held_out_numbers = np.unique(np.concatenate([one.numbers for one in sets]))
    if not len(held_out_numbers):
        raise DataError(
            f"E-TOK-17 {', '.join(held_out)}: no held-out document has {n} words in a row; at least one is needed. "
            "Fix: hold out more (corpus.valid_share), or lower leakage.ngram"
        )
    places = [np.searchsorted(held_out_numbers, one.numbers) for one in sets]
    path = scratch / "wanted.npy"
    np.save(path, held_out_numbers, allow_pickle=False)
    rows: list[Overlap] = []
    anywhere = np.full(len(held_out_numbers), -1, np.int64)
    with closing(map_ordered(Scanner, (tokenizer.path, str(path), n), _tasks(trained), workers)) as results:
        for name, of_source in groupby(results, key=lambda result: result[0][0]):
            seen = np.full(len(held_out_numbers), -1, np.int64)
            for (_, tokens), (at, documents) in of_source:
                new = seen[at] < 0
                seen[at[new]] = documents[new]
                bar.update(tokens)
            rows += [one.overlap(name, at, seen, max_share) for one, at in zip(sets, places, strict=True)]
            np.maximum(anywhere, seen, out=anywhere)
    return rows + [one.overlap(None, at, anywhere, max_share) for one, at in zip(sets, places, strict=True)]


def _tasks(trained: dict[str, IndexedDataset]) -> Iterator[tuple[tuple[str, int], tuple[str, int, int]]]:
    """Yield ((source, tokens), (prefix, first, stop)) for every stretch of every source."""
    for name, data in trained.items():
        for first, stop in stretches(data, STRETCH):
            yield (name, data.document_start(stop) - data.document_start(first)), (data.prefix, first, stop)
