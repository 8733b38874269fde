"""A chunk of an input to token ids: what a worker does."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from coca_train.data.dataset import best_dtype
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.readers import documents
from data_prep.readers.base import Chunk, Reject
from data_prep.schema import CorpusSourceConfig, PrepareConfig
from data_prep.selection.rules import Rules, digest_of, pieces
from data_prep.tokenizing.parts import DOCS, SPLITS

NO_ID = bytes(16)


class Task(NamedTuple):
    """source: its name; path: of the input, for messages."""

    source: str
    path: str
    chunk: Chunk


class Encoded(NamedTuple):
    """A chunk as it goes to disk.

    tokens: by split, ids of all its documents back to back, each with its end token, little-endian in the final dtype;
    documents: DOCS (n,), in the order of the input; counts: "documents", "characters", "bytes" of what is kept, and by
    rule how many were left out; rejects: what could not be used.
    """

    tokens: tuple[np.ndarray, ...]
    documents: np.ndarray
    counts: dict[str, int]
    rejects: list[Reject]


class Encoder:
    """Encodes tasks; tokenizer and rules are loaded when the first one comes.

    digest: of the tokenizer the main process knows. Raises DataError E-TOK-11 when the file is another one by now.
    """

    def __init__(self, config: PrepareConfig, digest: str) -> None:
        self._config = config
        self._tokenizer = Tokenizer(config.tokenizer.path)
        if self._tokenizer.digest != digest:
            raise DataError(
                f"E-TOK-11 {config.tokenizer.path}: was replaced while it was in use; one tokenizer is needed from the "
                "beginning to the end. Fix: bring the file back, and run the same command again"
            )
        self._dtype = np.dtype(best_dtype(self._tokenizer.vocab_size))
        self._rules: dict[str, Rules] = {}

    def __call__(self, task: Task) -> Encoded:
        source = self._config.corpus.sources[task.source]
        if task.source not in self._rules:
            self._rules[task.source] = Rules(source.filter)
        return self._encode(task, source, self._rules[task.source])

    def _encode(self, task: Task, source: CorpusSourceConfig, rules: Rules) -> Encoded:
        encode, end = self._tokenizer.encode_array, np.array([self._tokenizer.eod], self._dtype)
        corpus = self._config.corpus
        tokens: tuple[list[np.ndarray], ...] = tuple([] for _ in SPLITS)
        counts: Counter[str] = Counter(documents=0, characters=0, bytes=0)
        rejects: list[Reject] = []
        rows: list[tuple[Any, ...]] = []
        for item in documents(task.path, source, self._config.work, task.chunk):
            if isinstance(item, Reject):
                rejects.append(item)
                continue
            rule = rules.refuses(item)
            if rule is not None:
                counts[rule] += 1
                continue
            name = NO_ID if source.id_field is None or item.id is None else digest_of(item.id)
            for text, digest, split in pieces(item.text, source, corpus):
                ids = encode(text)
                tokens[split].extend((ids, end))
                n_bytes = len(text.encode())
                rows.append((item.line, len(ids) + 1, len(text), n_bytes, split, digest, name))
                name = NO_ID  # the record's, whose other pieces have other texts
                counts["documents"] += 1
                counts["characters"] += len(text)
                counts["bytes"] += n_bytes
        little = self._dtype.newbyteorder("<")
        arrays = tuple(np.concatenate([np.empty(0, little), *ids]).astype(little, copy=False) for ids in tokens)
        return Encoded(arrays, _table(rows), dict(counts), rejects)


def _table(rows: list[tuple[Any, ...]]) -> np.ndarray:
    """Column by column: half the time of row by row."""
    table = np.zeros(len(rows), DOCS)
    if rows:
        *numbers, digests, ids = zip(*rows, strict=True)
        for name, column in zip(DOCS.names or (), numbers, strict=False):
            table[name] = column
        table["digest"] = np.frombuffer(b"".join(digests), "V16")
        table["id"] = np.frombuffer(b"".join(ids), "V16")
    return table
