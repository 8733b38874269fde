"""The training mixture: sample number -> window of a source, as a pure function of the configuration.

Nothing is stored and nothing is shuffled in memory: sample i of a run with (data.seed, data.order, data.packing,
sources, seq_len; in streams the global batch size too) is the same tokens on any rank, at any world size,
after any number of restarts.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from coca_train.config.schema import DataConfig
from coca_train.data.answers import Marks, marks_of, score_answers
from coca_train.data.batch import Batch, collate
from coca_train.data.dataset import IndexedDataset
from coca_train.data.masking import Masking
from coca_train.data.packing import Edges, checked_row, pack
from coca_train.data.placement import ends_of_sentences, place
from coca_train.data.provenance import Origins, Passage, Provenance, read_manifest
from coca_train.data.sampling import PackedSource, SamplePlace, Shuffled, Streams
from coca_train.data.storage import Digest, digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from coca_train.runtime.threads import map_in_threads
from coca_train.runtime.trees import flatten

LOOKED_AT = 100  # windows of a source, for an answer
DIGEST_THREADS = 8  # each waits for its disk most of the time


class Mixture:
    """Weighted sources, endless unless one of them is to stop.

    vocab_size: rows of the embedding [tokens]; ids beyond raise DataError E-TOK-09 when they are read. None = no check.
    global_batch_size: [sequences]; needed where data.order=stream: sample i is row i % global_batch_size of a step.
    edges: ids that packings add; needed unless data.packing=windows.
    """

    def __init__(
        self,
        config: DataConfig,
        seq_len: int,
        vocab_size: int | None = None,
        global_batch_size: int | None = None,
        edges: Edges | None = None,
    ) -> None:
        self.config, self.seq_len, self.vocab_size, self._marks = config, seq_len, vocab_size, marks_of(config)
        self.global_batch_size, self.edges = global_batch_size, edges
        self._masking = Masking(config) if config.objective.name == "masked_token" else None
        self.sources = []
        for name in sorted(config.sources):  # the order of the yaml does not matter
            source = config.sources[name]
            check_tokenizer(config.tokenizer, f"data.sources.{name}.path", source.path)
            dataset = IndexedDataset(source.path, config.verify_blocks)
            self.sources.append(PackedSource(name, source, pack(config, name, dataset, seq_len, edges)))
        if self._marks is not None:
            self._require_answers(self._marks)
        self._order: Shuffled | Streams
        if config.order == "stream":
            assert global_batch_size is not None
            self._order = Streams(self.sources, global_batch_size)
        else:
            self._order = Shuffled(self.sources, config.seed)

    def _require_answers(self, marks: Marks) -> None:
        """Raise DataError E-MIX-06 where the first windows of a source have no answer."""
        for source in self.sources:
            n = min(LOOKED_AT, source.n_windows)
            if not any((source.packing.row(window).ids == marks.begin).any() for window in range(n)):
                raise DataError(
                    f"E-MIX-06 data.answers.begin={self.config.answers.begin!r}: none of the first {n} windows of "
                    f"data.sources.{source.name} has this piece, so nothing would be learned. Fix: name the piece that "
                    "answers begin with, or data.answers.begin=null"
                )

    @cached_property
    def _origins(self) -> list[Origins]:
        return [Origins(source.dataset) for source in self.sources]

    def provenance(self, i: int) -> Provenance:
        """Return which tokens of which documents make up sample i."""
        (place,) = self._order.places(i, 1)
        source, origins = self.sources[place.source], self._origins[place.source]
        start = source.dataset.document_start
        parts = (
            Passage(
                span.at,
                span.document,
                span.start,
                span.stop,
                start(span.document),
                start(span.document + 1),
                origins.find(span.document),
            )
            for span in source.packing.spans(place.window)
        )
        return Provenance(source.name, place.epoch, place.window, tuple(parts))

    def places(self, first: int, n: int) -> list[SamplePlace]:
        """Return source, epoch and window of samples first .. first + n - 1."""
        return self._order.places(first, n)

    def batch(self, places: Sequence[SamplePlace]) -> Batch:
        """Return the samples of these places, one row each."""
        rows = [checked_row(self.sources[place.source].packing, place.window, self.vocab_size) for place in places]
        batch = collate(rows)
        if self._marks is not None:
            batch = score_answers(batch, self._marks)
        if self.config.placement.name != "text":
            batch = self._placed(batch, places)
        if self.config.length_of == "document":
            # Positions restart at each document; beyond the last scored target is padding.
            last = max(int(pos_T[: row.scored + 1].max()) for row, pos_T in zip(rows, batch.pos_BT, strict=True))
            batch = replace(batch, length=last + 1)
        if self._masking is not None:  # last: the others read the text
            batch = self._masking(batch, [self._draw_of(place) for place in places])
        if self.config.order == "shuffled":
            return batch
        return replace(batch, continues_B=torch.tensor([place.continues for place in places]))

    def _placed(self, batch: Batch, places: Sequence[SamplePlace]) -> Batch:
        """Place the tokens of every row, as its source, epoch and window decide."""
        config, rows = self.config.placement, []
        for row, tokens_T, at in zip(batch.pos_BT.numpy(), batch.tokens_BT.numpy(), places, strict=True):
            draw = random.Random(self._draw_of(at))
            ends_T = self._ends_of_sentences.take(tokens_T, mode="clip") if config.name == "longrecipe" else None
            rows.append(place(config, row, draw, ends_T))
        return replace(batch, pos_BT=torch.from_numpy(np.stack(rows)), length=config.target)

    def _draw_of(self, place: SamplePlace) -> str:
        """Return what the draws of a row follow from."""
        return f"{self.config.seed} {self.sources[place.source].name} {place.epoch} {place.window}"

    @cached_property
    def _ends_of_sentences(self) -> np.ndarray:
        """Whether a token ends a sentence, by its id; the last entry is that of ids beyond the tokenizer's."""
        tokenizer = Tokenizer(self.config.tokenizer)
        texts = (tokenizer.decode([token]) for token in range(tokenizer.vocab_size))
        return np.append(ends_of_sentences(texts), False)

    def samples(self, first: int, n: int) -> Batch:
        """Return samples first .. first + n - 1, one row each."""
        return self.batch(self.places(first, n))

    def epochs(self, n_samples: int) -> dict[str, float]:
        """Return how many epochs of each source n_samples make up."""
        counts = self._order.counts(n_samples)
        return {s.name: count / s.n_windows for s, count in zip(self.sources, counts, strict=True)}

    def max_samples(self) -> int | None:
        """Return the number of samples before the first source with on_exhausted=stop runs out; None = no end."""
        return self._order.max_samples()

    def fingerprint(self) -> dict[str, object]:
        """Return what the data is, as JSON: digests and sizes of every file, and all that decides the order.

        Paths are left out: moved data is the same data. Files below 64 MiB are hashed whole, larger ones in 64 blocks
        of 64 KiB (`of` says which).
        """
        digests, config = file_digests(source.dataset for source in self.sources), self.config
        order: dict[str, object] = {"seed": config.seed, "seq_len": self.seq_len, "document_mask": config.document_mask}
        order |= {"packing": config.packing, **self._order.fingerprint()}
        if config.placement.name != "text":
            order["placement"] = asdict(config.placement)
        if self._marks is not None:
            order["answers"] = self._marks._asdict()
        if self._masking is not None:
            order["objective"] = self._masking.fingerprint()
        if config.curriculum.begin is not None:
            order["curriculum"] = asdict(config.curriculum)
        if config.length_of != "row":
            order["length_of"] = config.length_of
        if config.packing != "windows":  # which adds no ids and repeats no document
            assert self.edges is not None
            order["upsample"] = {"from_tokens": config.upsample_from_tokens, "factor": config.upsample_factor}
            order["edges"] = self.edges._asdict()
        return {
            "tokenizer": tokenizer_digest(config.tokenizer),
            "order": order,
            "sources": {
                source.name: {
                    "weight": source.config.weight,
                    "on_exhausted": source.config.on_exhausted,
                    "tokens": source.dataset.n_tokens,
                    "documents": source.dataset.n_documents,
                    "bin": digests[source.dataset.bin_path],
                    "idx": digests[source.dataset.idx_path],
                }
                for source in self.sources
            },
        }


def check_tokenizer(tokenizer: str, key: str, prefix: str) -> None:
    """Check that a dataset prepared by data_prep was made with the run's tokenizer (E-TOK-11).

    key: the option that names the dataset. Raises DataError E-TOK-08 where the manifest is damaged.
    """
    written = read_manifest(prefix)
    if written is None:
        return
    made_with, end = written["tokenizer"]["sha256"], written.get("end_of_document")
    if made_with != (now := tokenizer_digest(tokenizer)["sha256"]):
        raise DataError(
            f"E-TOK-11 {key}: {prefix} was made with tokenizer {made_with[:16]}, data.tokenizer {tokenizer} is "
            f"{now[:16]}. Fix: set data.tokenizer to the one next to the data, or prepare the data again"
        )
    if end != (eod := Tokenizer(tokenizer).eod):
        raise DataError(
            f"E-TOK-11 {key}: documents of {prefix} end with {end}, and {tokenizer} ends them with {eod}. "
            "Fix: copy the folder of the tokenizer's other files too, or prepare the data again"
        )


def file_digests(datasets: Iterable[IndexedDataset]) -> dict[str, Digest]:
    """Return size and SHA-256 (`storage.digest`) of the .bin and the .idx of each dataset, by path."""
    files = [path for dataset in datasets for path in (dataset.bin_path, dataset.idx_path)]
    # Files may lie on a network disk, where each sample waits for its own round trip.
    # Reading and hashing both let other threads run.
    return dict(zip(files, map_in_threads(digest, files, DIGEST_THREADS), strict=True))


def tokenizer_digest(path: str) -> Digest:
    """Return size and SHA-256 of the tokenizer's file; DataError E-TKN-01 when it is missing."""
    try:
        return digest(path)
    except OSError as error:
        raise DataError(
            f"E-TKN-01 {path}: {error.strerror}; a SentencePiece model file is needed. "
            "Fix: check data.tokenizer, or run: python -m data_prep embedded"
        ) from error


def fingerprint_diff(old: Mapping[str, object], new: Mapping[str, object]) -> str | None:
    """Describe what differs between two fingerprints, by key (sources.code.bin.sha256); None: nothing."""
    before, after = flatten(old), flatten(new)
    changed = [
        f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    return "; ".join(changed) or None


def require_files(config: DataConfig, commands: Callable[[], str]) -> None:
    """Raise DataError E-TOK-01 naming every missing file of the data configuration. commands: which make them."""
    sources = config.sources.values()
    prefixes = [s.path for s in sources] + [s.valid_path for s in sources if s.valid_path]
    paths = [config.tokenizer, *(prefix + suffix for prefix in prefixes for suffix in (".bin", ".idx"))]
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        listed = "".join(f"\n  {path}" for path in missing)
        raise DataError(
            f"E-TOK-01 data: {len(missing)} of {len(paths)} files are missing (looked from {Path.cwd()}):{listed}\n"
            "Training reads a SentencePiece model and .bin/.idx pairs as GPT-NeoX and Megatron make them "
            f"(docs/data.md). Fix: bring them to these places, or make them from text: {commands()}"
        )
