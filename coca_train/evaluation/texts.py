"""The text of an evaluation: files, a corpus, or what a run held out; the documents a model is measured on.

Held-out sets are token files; their documents come back as text, so that models with other tokenizers read the same.
A training reads its own as they are, the token that ends a text included.
A model of a Hugging Face folder whose tokenizer has a token that begins a text gets it in front of every document; it
is read and never scored. Runs get none, as their training texts have none.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coca_train.checkpoint.opening import read_record
from coca_train.config.corpus_schema import CorpusSourceConfig, FilterConfig, WorkConfig
from coca_train.config.schema import Config
from coca_train.data import readers
from coca_train.data.corpus_config import load as load_corpus
from coca_train.data.dataset import IndexedDataset
from coca_train.data.held_out import HeldOut
from coca_train.data.mixture import fingerprint_diff
from coca_train.data.readers.base import Reject
from coca_train.data.readers.files import kind_of_file
from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.configuration import TextConfig
from coca_train.evaluation.subject import Setup, Subject
from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import HELD_OUT, load_saved
from coca_train.statistics.answers import LEAST as ENOUGH

COUNTED = 2_000_000  # tokens of a source
LEAST = 2  # tokens of a document that has something to predict
NO_FILTER = FilterConfig(
    min_chars=1, max_chars=None, language_field=None, languages=[], licence_field=None, licences=[], stars_field=None,
    min_stars=0, quality=[],
)  # fmt: skip
READING = WorkConfig(
    workers=1, shard="0/1", on_error="stop", max_reject_share=0.0, max_line_bytes=1 << 30, chunk_bytes=1 << 22,
    part_bytes=1 << 28, progress_bar=False,
)  # fmt: skip


def read_once(config: TextConfig, checkpoints: Sequence[str]) -> Callable[[], Mapping[str, list[str]]]:
    """Return a function that returns the documents by source, and reads them on its first call.

    checkpoints: where held-out sets are looked for. It raises DataError E-EVAL-04 when there is no text, and what a
    reader finds wrong in a file.
    """

    @cache
    def read() -> Mapping[str, list[str]]:
        if config.files:
            return _read_files(config)
        if config.corpus is not None:
            return _read_corpus(config.corpus, config.sources)
        return _read_held_out(config.sources, checkpoints)

    return read


@dataclass(frozen=True)
class Texts:
    """Documents as one model reads them, int64 token ids, by source."""

    documents: Mapping[str, list[np.ndarray]]
    tokenizer: Tokenizer

    def n_bytes(self, tokens: np.ndarray) -> int:
        """Return the size in UTF-8 of the text of some tokens [bytes]."""
        return len(self.tokenizer.decode(tokens.tolist()).encode("utf-8"))


def digest(documents: Mapping[str, Sequence[np.ndarray]]) -> str:
    """Digest sources, documents, tokens."""
    whole = hashlib.sha256()
    for source, texts in documents.items():
        whole.update(f"{source} {len(texts)}\n".encode())
        for text in texts:
            whole.update(f"{len(text)}\n".encode())
            whole.update(np.ascontiguousarray(text, dtype="<i8").tobytes())
    return whole.hexdigest()


class Library:
    """Every document there is, as one model reads it; a token file is not read to find its long documents."""

    def __init__(self, subject: Subject, setup: Setup) -> None:
        self._tokenizer, self._setup = subject.tokenizer, setup
        self._shelves: dict[str, Shelf] = {}
        if setup.token_files:
            for source, dataset in setup.token_files.items():
                self._shelves[source] = Shelf(np.diff(dataset.document_bounds()), dataset.document)
        else:
            for source, texts in setup.texts().items():
                tokens = [np.asarray([*subject.begin, *subject.tokenizer.encode(t)], dtype=np.int64) for t in texts]
                self._shelves[source] = Shelf(np.array([len(each) for each in tokens], dtype=int), tokens.__getitem__)

    @property
    def longest(self) -> int:
        """Length of the longest document [tokens]."""
        return max((int(shelf.lengths.max(initial=0)) for shelf in self._shelves.values()), default=0)

    def filled(self, windows: Sequence[int]) -> list[int]:
        """Return the windows that a document fills, where enough is asked for (`Setup`) as many as an answer needs;
        those that one fills where none has so many."""
        needed = min(ENOUGH, self._setup.max_documents) if self._setup.enough else 1
        return [w for w in windows if self._n_read(w) >= needed] or [w for w in windows if w <= self.longest]

    def _n_read(self, min_tokens: int) -> int:
        """Return how many documents `choose` would give."""
        fitting = [n for shelf in self._shelves.values() if (n := int((shelf.lengths >= min_tokens).sum()))]
        return sum(min(math.ceil(self._setup.max_documents / len(fitting)), n) for n in fitting)

    def choose(self, min_tokens: int, lengths_from: str = "") -> Texts:
        """Return documents of at least min_tokens [tokens], at most max_documents, as many of one source as of another,
        evenly chosen.

        lengths_from: the option that min_tokens comes from. Raises DataError E-EVAL-05 when none is long enough.
        """
        documents, min_tokens = {}, max(min_tokens, LEAST)
        long = {source: np.flatnonzero(shelf.lengths >= min_tokens) for source, shelf in self._shelves.items()}
        of_each = math.ceil(self._setup.max_documents / max(1, sum(len(fitting) > 0 for fitting in long.values())))
        for source, fitting in long.items():
            n = min(of_each, len(fitting))
            if n:
                # Every k-th, not the first n: corpora are often sorted by length, date or site.
                read = self._shelves[source].read
                documents[source] = [read(int(fitting[i * len(fitting) // n])) for i in range(n)]
        if not documents:
            option = lengths_from or self._setup.lengths_from
            files = "" if self._setup.token_files else "text.files with "
            raise DataError(
                f"E-EVAL-05 text: no document has {min_tokens:,} tokens (the longest has {self.longest:,}); windows "
                f"this long need one. Fix: a smaller {option}, or {files}longer documents"
            )
        return Texts(documents, self._tokenizer)


class Shelf(NamedTuple):
    """The documents of one source: their lengths [tokens], and how one is read."""

    lengths: np.ndarray
    read: Callable[[int], np.ndarray]


def _read_files(config: TextConfig) -> dict[str, list[str]]:
    """Return by file name without its endings; parts of one set (books-00000-of-00004) together."""
    texts: dict[str, list[str]] = {}
    for pattern in config.files:
        kind = kind_of_file(pattern)
        source = CorpusSourceConfig(
            kind="jsonl" if kind == "auto" else kind, files=[pattern], hub=None, hub_config=None, hub_split="test",
            hub_files=[], text_field=config.text_field, id_field=None, group="text", weight=None, hold_out="all",
            licence="", about="", filter=NO_FILTER,
        )  # fmt: skip
        name = Path(pattern).name.split(".")[0].split("-0")[0].rstrip("-*") or "text"
        texts.setdefault(name, []).extend(_read(name, source))
    return texts


def _read(name: str, source: CorpusSourceConfig) -> Iterator[str]:
    for input in readers.inputs(name, source):
        for chunk in readers.chunks(input, source, READING, None):
            for document in readers.documents(input.path, source, READING, chunk):
                if isinstance(document, Reject):
                    raise document.error(input.path)
                yield document.text


def _read_corpus(choice: str, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Read what of a corpus is held out as a whole."""
    sources = {n: s for n, s in load_corpus([f"corpus={choice}"]).corpus.sources.items() if s.hold_out == "all"}
    chosen = _chosen(f"corpus {choice}", list(sources), wanted)
    return {name: list(_read(name, sources[name])) for name in chosen}


def _read_held_out(wanted: Sequence[str], checkpoints: Sequence[str]) -> dict[str, list[str]]:
    run = next((path for path in checkpoints if (Path(path) / "run.json").is_file()), None)
    if run is None:
        raise DataError(
            "E-EVAL-04 text.files: no text, and no checkpoint is a run that held some out. "
            "Fix: text.files=[books.jsonl.gz]"
        )
    saved: Config = load_saved(run).config
    sources, tokenizer = saved.data.sources, Tokenizer(saved.data.tokenizer)
    chosen = _chosen(run, [name for name, source in sources.items() if source.valid_path], wanted)
    held_out = HeldOut(replace(saved.data, sources={name: sources[name] for name in chosen}))
    _check_unchanged(run, saved, held_out.fingerprint())
    return {
        name: [tokenizer.decode(file.document(i).tolist()) for i in range(file.n_documents)]
        for name, file in held_out.files.items()
    }


class TokenFrequencies:
    """Unigram and bigram models of a text: the least that a trained model must be better than.

    A pair is as likely as Witten and Bell (1991) have it, p(b | a) = (n(a, b) + t(a) p(b)) / (n(a) + t(a)) with t(a)
    the number of different tokens seen after a; p(b) is the share of b, one added to each count.

    texts: stretches of token ids, int64. vocab_size: ids are below it.
    """

    def __init__(self, texts: Iterable[np.ndarray], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.of_one_V, pairs = np.ones(vocab_size), list[np.ndarray]()
        for tokens in texts:
            self.of_one_V += np.bincount(tokens, minlength=vocab_size)
            pairs.append(tokens[:-1] * vocab_size + tokens[1:])
        self.of_one_V /= self.of_one_V.sum()
        # Sorted keys a V + b, to be searched: a table of V x V would be gigabytes.
        self.pairs, self.counts = np.unique(np.concatenate(pairs or [np.empty(0, int)]), return_counts=True)
        first = self.pairs // vocab_size
        self.n_V = np.bincount(first, weights=self.counts, minlength=vocab_size)
        self.types_V = np.bincount(first, minlength=vocab_size)

    def nll(self, tokens: np.ndarray) -> tuple[float, float]:
        """Return the NLL [nats] of all tokens but the first one: of each by itself, and of each after the one before
        it."""
        a, b = tokens[:-1], tokens[1:]
        of_one = self.of_one_V[b]
        key = a * self.vocab_size + b
        at = np.minimum(np.searchsorted(self.pairs, key), len(self.pairs) - 1)
        count = np.where(self.pairs[at] == key, self.counts[at], 0) if len(self.pairs) else np.zeros(len(key))
        n, types = self.n_V[a], self.types_V[a]
        seen = n + types > 0
        of_pair = np.where(seen, (count + types * of_one) / np.where(seen, n + types, 1), of_one)
        return float(-np.log(of_one).sum()), float(-np.log(of_pair).sum())


def count_frequencies(subject: Subject) -> TokenFrequencies | None:
    """Count the text that a run was trained on, the first COUNTED tokens of each source; None for a folder without, and
    where the text is gone."""
    if not (subject.path / "run.json").is_file():
        return None
    try:
        sources = load_saved(str(subject.path)).config.data.sources.values()
        files = [IndexedDataset(source.path) for source in sources]
    except UserError:
        return None
    n_tokens = subject.model.embed.num_embeddings
    return TokenFrequencies((file.tokens(0, min(file.n_tokens, COUNTED)) for file in files), n_tokens)


def _check_unchanged(run: str, saved: Config, fingerprints: Mapping[str, JsonObject]) -> None:
    """Raise DataError E-TOK-14 where a held-out file is not the one that a stage of the run was validated on."""
    for stage in read_record(Path(run)).get("stages", []):
        for name, now in fingerprints.items():
            path, before = saved.data.sources[name].valid_path, stage["held_out"].get(name)
            kept = path is not None and Path(path).parent == Path(run).resolve() / HELD_OUT
            same = kept or stage["settings"].get(f"data.sources.{name}.valid_path") == path
            if before is None or not same:
                continue
            if (difference := fingerprint_diff(before, now)) is not None:
                raise DataError(
                    f"E-TOK-14 {run}: the held-out text of {name}, {path}, is not what the run was validated on: "
                    f"{difference}; results on it would not be comparable. Fix: restore the file, or name other text: "
                    "text.files=[books.jsonl.gz]"
                )


def _chosen(where: str, offered: Sequence[str], wanted: Sequence[str]) -> Sequence[str]:
    """Return all, or those wanted. Raises DataError E-EVAL-04 when there are none, or one is not offered."""
    unknown = next((name for name in wanted if name not in offered), None)
    if not offered or unknown is not None:
        fix = f"text.sources=[{offered[0]}], or text.files=[…]" if offered else "give text.files"
        raise DataError(
            f"E-EVAL-04 text.sources: {where} holds out {', '.join(offered) or 'nothing'}"
            f"{'' if unknown is None else f', not {unknown}'}. Fix: {fix}"
        )
    return wanted or offered
