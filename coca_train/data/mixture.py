"""The training mixture: sample number -> window of a source, as a pure function of the configuration.

Nothing is stored and nothing is shuffled in memory: sample i of a run with (data.seed, sources, seq_len) is the
same tokens whoever asks, on any rank, at any world size, after any number of restarts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coca_train.config.errors import DataError
from coca_train.config.schema import DataConfig, SourceConfig
from coca_train.data.batch import Batch, Window, collate
from coca_train.data.files import digest
from coca_train.data.indexed import IndexedDataset
from coca_train.data.order import Permutation
from coca_train.data.proportions import Proportions


@dataclass(frozen=True)
class Provenance:
    """Where a sample comes from: tokens token_start .. token_stop - 1 of `source` (the last is target only)."""

    source: str
    epoch: int
    window: int
    token_start: int
    token_stop: int


class Source:
    """One part of the mixture, cut into windows of T inputs: window w is tokens w*T .. w*T + T."""

    def __init__(self, name: str, config: SourceConfig, seq_len: int, seed: int) -> None:
        self.name, self.config, self.seed = name, config, seed
        self.dataset = IndexedDataset(config.path)
        self.n_windows = count_windows(self.dataset, seq_len, name)
        self._orders: dict[int, Permutation] = {}

    def window(self, k: int) -> tuple[int, int]:
        """The k-th draw -> (epoch, window). Every epoch has its own order."""
        epoch, i = divmod(k, self.n_windows)
        if epoch and self.config.on_exhausted == "stop":
            raise DataError(
                f"E-MIX-01 data.sources.{self.name}: all {self.n_windows} windows were drawn and on_exhausted is "
                "'stop'; the run asks for more. Fix: lower train.max_steps, or set on_exhausted=repeat"
            )
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch may touch two epochs
                del self._orders[min(self._orders)]
            self._orders[epoch] = Permutation(self.n_windows, f"{self.seed}/{self.name}/{epoch}")
        return epoch, self._orders[epoch](i)


def count_windows(dataset: IndexedDataset, seq_len: int, name: str) -> int:
    n_windows = (dataset.n_tokens - 1) // seq_len
    if n_windows < 1:
        raise DataError(
            f"E-TOK-12 {dataset.bin_path} ({name}): {dataset.n_tokens} tokens; one window takes seq_len + 1 = "
            f"{seq_len + 1}. Fix: lower train.seq_len, or give the source more text"
        )
    return n_windows


class Mixture:
    """Weighted sources, endless unless one of them is to stop.

    vocab_size: rows of the embedding [tokens]; ids beyond raise DataError E-TOK-09 when they are read. None = no check.
    """

    def __init__(self, config: DataConfig, seq_len: int, vocab_size: int | None = None) -> None:
        self.config, self.seq_len, self.vocab_size = config, seq_len, vocab_size
        names = sorted(config.sources)  # the order of the yaml does not matter
        self.sources = [Source(name, config.sources[name], seq_len, config.seed) for name in names]
        self._proportions = Proportions([source.config.weight for source in self.sources])
        check_tokenizer(config)

    def provenance(self, i: int) -> Provenance:
        """Which tokens sample i is made of."""
        j, k = self._proportions.locate(i)
        epoch, window = self.sources[j].window(k)
        start = window * self.seq_len
        return Provenance(self.sources[j].name, epoch, window, start, start + self.seq_len + 1)

    def _window(self, i: int) -> Window:
        j, k = self._proportions.locate(i)
        return Window(self.sources[j].dataset, self.sources[j].window(k)[1] * self.seq_len)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The samples with these numbers, one row each."""
        windows = [self._window(i) for i in indices]
        return collate(windows, self.seq_len, self.config.document_mask, self.vocab_size)

    def sample(self, i: int) -> Batch:
        return self.batch([i])

    def epochs(self, n_samples: int) -> dict[str, float]:
        """How often each source has been gone through after n_samples."""
        counts = self._proportions.counts(n_samples)
        return {s.name: count / s.n_windows for s, count in zip(self.sources, counts, strict=True)}

    def max_samples(self) -> int | None:
        """Samples there are before the first source with on_exhausted=stop runs out; None = no end."""
        ends = [
            self._proportions.longest(j, source.n_windows)
            for j, source in enumerate(self.sources)
            if source.config.on_exhausted == "stop"
        ]
        return min(ends, default=None)

    def fingerprint(self) -> dict[str, Any]:
        """What the data is, as JSON: digests and sizes of every file, and all that decides the order.

        Paths are left out: moved data is the same data. Files below 64 MiB are hashed whole, larger ones in 64 blocks
        of 64 KiB (`of` says which).
        """
        return {
            "tokenizer": tokenizer_digest(self.config.tokenizer),
            "order": {"seed": self.config.seed, "seq_len": self.seq_len, "document_mask": self.config.document_mask},
            "sources": {
                source.name: {
                    "weight": source.config.weight,
                    "on_exhausted": source.config.on_exhausted,
                    "tokens": source.dataset.n_tokens,
                    "documents": source.dataset.n_documents,
                    "bin": digest(source.dataset.bin_path),
                    "idx": digest(source.dataset.idx_path),
                }
                for source in self.sources
            },
        }


def check_tokenizer(config: DataConfig) -> None:
    """Where a manifest.json of data_prep lies beside a source, its tokenizer must be the run's (E-TOK-11)."""
    for name, source in sorted(config.sources.items()):
        manifest = Path(source.path).parent / "manifest.json"
        try:
            made_with = json.loads(manifest.read_text(encoding="utf-8"))["tokenizer"]["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a dataset of another tool: nothing is known about its tokenizer
        if made_with != (now := tokenizer_digest(config.tokenizer)["sha256"]):
            raise DataError(
                f"E-TOK-11 data.sources.{name}: {source.path} was made with tokenizer {made_with[:16]}, data.tokenizer "
                f"{config.tokenizer} is {now[:16]}; they must be the same. Fix: set data.tokenizer to the one beside "
                "the data, or prepare the data again"
            )


def tokenizer_digest(path: str) -> dict[str, Any]:
    """Size and SHA-256 of the tokenizer's file; DataError E-TKN-01 when it is missing."""
    try:
        return digest(path)
    except OSError as error:
        raise DataError(
            f"E-TKN-01 {path}: {error.strerror}; a SentencePiece model file is needed. "
            "Fix: check data.tokenizer, or run: python -m data_prep embedded"
        ) from error


def fingerprint_diff(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """What differs between two fingerprints, in words, or None. The key tells where: sources.code.bin.sha256."""
    before, after = _flat(old), _flat(new)
    changed = [
        f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    return "; ".join(changed) or None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
