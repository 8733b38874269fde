"""MinHash signatures of documents, the matches between them as datatrove computes them, and the groups that they form.

A document becomes the set of its n-grams of words (lower case, no punctuation, numbers as 0); 14 x 8 minima of random
hashes of that set are its signature. Two documents match where the 8 of one bucket agree, which happens with
probability 1 - (1 - s^8)^14 at a Jaccard similarity s: 0.92 at s = 0.8, 0.9996 at 0.9. (Broder 1997; FineWeb, arXiv
2406.17557, section 3.) datatrove makes the signatures and finds the matches; the files between the two are its own.
datatrove's third step keeps every match in memory and one document of a group, whichever; here the groups are a
memory-mapped file of 8 bytes a document, and the document that stays is the first by rank, then by number.
"""

import dataclasses
import hashlib
import json
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from coca_train.config.corpus_schema import CorpusSourceConfig, NearDuplicatesConfig, PrepareConfig
from coca_train.data.readers import chunks, documents
from coca_train.data.readers.base import Chunk, Input, Reject
from coca_train.data.storage import flush_to_disk, storage
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import replace
from coca_train.runtime.errors import UserError
from data_prep.selection import Rules, datatrove, digest_of, pieces, word_splitter
from data_prep.workers import map_ordered

WHERE = "near_duplicates"
WORDS = "words"  # near_duplicates.language: white space, after datatrove's own simplification
SEED = 1
BLOCK_BYTES = 128 << 20  # signatures held in memory, and sorted, at a time
SLICE = 4096  # n-grams hashed at a time
READ_SIGNATURES = 64
SPARE_FILES = 64
CHUNK = 1 << 18


def n_hashes(config: NearDuplicatesConfig) -> int:
    return config.buckets * config.hashes_per_bucket


def block_documents(config: NearDuplicatesConfig) -> int:
    """Return how many documents' signatures make up a block."""
    return max(1, BLOCK_BYTES // (8 * n_hashes(config)))


def _settings(config: NearDuplicatesConfig) -> Any:
    """Return datatrove's own settings. SHA-1: the xxhash package changed under datatrove, Python's hashlib does not."""
    minhash, hashing = datatrove("pipeline.dedup.minhash", WHERE), datatrove("utils.hashing", WHERE)
    return minhash.MinhashConfig(
        n_grams=config.ngram,
        num_buckets=config.buckets,
        hashes_per_bucket=config.hashes_per_bucket,
        seed=SEED,
        hash_config=hashing.HashConfig(precision=64, hash_fc="sha1"),
    )


def _local(folder: Path) -> Any:
    """Open a folder for datatrove; never taken for an address, whatever its name looks like."""
    files = datatrove("io", WHERE)
    from fsspec.implementations.local import LocalFileSystem

    return files.DataFolder(str(folder), fs=LocalFileSystem())


class Signer:
    """Texts to signatures. Raises UserError E-RAW-25 when datatrove, or the word splitter it needs, is missing."""

    def __init__(self, config: NearDuplicatesConfig, folder: Path) -> None:
        minhash = datatrove("pipeline.dedup.minhash", WHERE)
        self._step = minhash.MinhashDedupSignature(_local(folder), _settings(config), language=_splitter(config))

    def signature(self, text: str) -> np.ndarray | None:
        """Return uint64 (buckets * hashes_per_bucket,); None for a text of fewer words than an n-gram has.

        The minimum is taken over slices of the n-grams: a book's hashes at once would take gigabytes.
        """
        shingles = self._step.get_shingles(text)
        lowest = None
        for begin in range(0, len(shingles), SLICE):
            minima = np.array(self._step.get_signature(shingles[begin : begin + SLICE]), np.uint64).reshape(-1)
            lowest = minima if lowest is None else np.minimum(lowest, minima)
        return lowest


def _splitter(config: NearDuplicatesConfig) -> Any:
    if config.language != WORDS:
        return word_splitter(config.language, f"{WHERE}.language={config.language}")

    class Words(datatrove("utils.word_tokenizers", WHERE).WordTokenizer):
        """datatrove's simplification leaves nothing but words and spaces."""

        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(0, len(text))]

    return Words()


def write_block(
    folder: Path, block: int, documents: np.ndarray, signatures: np.ndarray, config: NearDuplicatesConfig
) -> None:
    """Write the signatures of a block, sorted, one file a bucket, in the form datatrove's second step reads.

    documents: (n,), their numbers in the block; signatures: uint64 (n, buckets * hashes_per_bucket).
    """
    per = config.hashes_per_bucket
    form = np.dtype([("signature", "<u8", (per,)), ("document", "<u4")])
    for bucket in range(config.buckets):
        part = signatures[:, bucket * per : (bucket + 1) * per]
        # By signature, then document: the order in which datatrove merges the blocks of a bucket.
        order = np.lexsort((documents, *part.T[::-1]))
        records = np.empty(len(documents), form)
        records["signature"], records["document"] = part[order], documents[order]
        path = _bucket(folder, bucket) / f"{block:05d}.minhash.sig"
        with storage(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                file.write(records.tobytes())
                flush_to_disk(file)


def _bucket(folder: Path, bucket: int) -> Path:
    return folder / f"bucket_{bucket:03d}"


def drop_blocks(folder: Path, first: int) -> None:
    """Remove the files of blocks from `first` on: what a killed run left."""
    for path in folder.glob("bucket_*/*.minhash.sig"):
        if int(path.name.split(".")[0]) >= first:
            path.unlink()


def match(folder: Path, bucket: int, config: NearDuplicatesConfig, n_blocks: int) -> Path:
    """Find the matches of one bucket; return the file with them (see `matches`).

    Raises UserError E-RUN-12 where a process may not open a file of each block at once.
    """
    minhash = datatrove("pipeline.dedup.minhash", WHERE)
    _allow_files(n_blocks + SPARE_FILES)
    matches_folder = folder / "matches"
    step = minhash.MinhashDedupBuckets(
        _local(folder), _local(matches_folder), config=_settings(config), lines_to_buffer=READ_SIGNATURES
    )
    with storage(str(matches_folder)):
        step.run(rank=bucket, world_size=config.buckets)
    return matches_folder / f"{bucket:05d}_00.dups"


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UserError(
                f"E-RUN-12 {WHERE}: a process may open {hard} files; {needed} are needed, one for each block of "
                f"documents. Fix: ulimit -n {needed}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def matches(path: Path, block_starts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield numbers of two documents that match, int64 (n, 2), some at a time. block_starts: (blocks,), where each
    begins."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        assert size % 16 == 0, (path, size)
        while data := file.read(1 << 20):
            pairs = np.frombuffer(data, "<u4").reshape(-1, 2, 2).astype(np.int64)
            yield block_starts[pairs[:, :, 0]] + pairs[:, :, 1]


STAYS, HELD_OUT, TRAINED_ON = range(3)  # ranks; STAYS is never left out: a document of an evaluation set


class Clusters:
    """Union-find over document numbers 0 .. len(ranks) - 1. ranks: uint8 (n,), memory-mapped or not."""

    def __init__(self, path: Path, ranks: np.ndarray) -> None:
        self.n, self._ranks = len(ranks), ranks
        with storage(str(path)), open(path, "wb") as file:
            for begin in range(0, self.n, CHUNK):
                file.write(np.arange(begin, min(begin + CHUNK, self.n), dtype=np.int64).tobytes())
        # A plain view: reading single numbers through np.memmap itself is ten times slower.
        self._up = np.asarray(np.memmap(path, np.int64, "r+", shape=(self.n,))) if self.n else np.empty(0, np.int64)

    def _root(self, document: int) -> int:
        up = self._up
        while (above := int(up[document])) != document:
            up[document] = document = int(up[above])  # halve the way for those who come later
        return document

    def join(self, pairs: Iterable[np.ndarray]) -> None:
        """Join documents into groups. pairs: arrays (k, 2). The root of a group is the document that stays."""
        ranks, up = self._ranks, self._up
        for array in pairs:
            for a, b in array.tolist():
                a, b = self._root(a), self._root(b)
                if a != b:
                    # The root is the document that stays, so groups need no second pass to elect one.
                    first, second = (a, b) if (ranks[a], a) < (ranks[b], b) else (b, a)
                    up[second] = first

    def left_out(self) -> Iterator[np.ndarray]:
        """Yield int64 (k, 2), rising, some at a time: a document that goes, and the one of its group that stays."""
        for begin in range(0, self.n, CHUNK):
            up = self._up[begin : begin + CHUNK]
            own = np.arange(begin, begin + len(up))
            gone = np.flatnonzero((up != own) & (self._ranks[begin : begin + CHUNK] != STAYS))
            roots = up[gone]
            while not np.array_equal(above := self._up[roots], roots):
                roots = above
            yield np.stack((own[gone], roots), axis=1)


# Signing. Below the work folder: documents.bin (DOCUMENTS, a record for each document that the rules keep, in order:
# source by name, input, line), bucket_*/<block>.minhash.sig, and state.json, written after each block. A killed run
# resumes after the last block.

DOCUMENTS = np.dtype([("source", "<u2"), ("input", "<u4"), ("line", "<u8"), ("rank", "u1"), ("digest", "<u8")])
FORMAT = 1
CHUNK_BYTES = 1 << 20  # text signed at a time; its signatures wait in memory for their turn
UNUSED = ("about", "licence", "group", "weight", "id_field", "files")  # inputs say which files they are


class Signed(NamedTuple):
    """A chunk's documents. records: DOCUMENTS (n,); signed: places of those with a signature; signatures: uint64
    (m, hashes); rejected: how many are bad; reject: the bad one to stop at, under work.on_error=stop."""

    records: np.ndarray
    signed: np.ndarray
    signatures: np.ndarray
    rejected: int
    reject: Reject | None


class Ticket(NamedTuple):
    """Where a chunk comes from. input: its place in the list; position, after: of the chunk."""

    input: int
    position: int
    after: dict[str, int]


class Worker:
    """Signs chunks; made once in each process."""

    def __init__(self, config: PrepareConfig, folder: Path) -> None:
        self._config, self._names = config, sorted(config.corpus.sources)
        self._signer = Signer(config.near_duplicates, folder)
        self._rules: dict[str, Rules] = {}

    def __call__(self, task: tuple[Input, Chunk]) -> Signed:
        input, chunk = task
        source, number = self._config.corpus.sources[input.source], self._names.index(input.source)
        if input.source not in self._rules:
            self._rules[input.source] = Rules(source.filter)
        records, signed, signatures, rejected = [], [], [], 0
        stop = None
        for document in documents(input.path, source, self._config.work, chunk):
            if isinstance(document, Reject):
                rejected += 1
                if self._config.work.on_error == "stop":
                    stop = document
                    break
            elif self._rules[input.source].refuses(document) is None:
                signature = self._signer.signature(document.text)
                if signature is not None:
                    signed.append(len(records))
                    signatures.append(signature)
                digest = digest_of(document.text)
                rank = self._rank(document.text, source)
                records.append((number, input.number, document.line, rank, int.from_bytes(digest[:8], "little")))
        width = n_hashes(self._config.near_duplicates)
        stacked = np.stack(signatures) if signatures else np.empty((0, width), np.uint64)
        return Signed(np.array(records, DOCUMENTS), np.array(signed, np.int64), stacked, rejected, stop)

    def _rank(self, text: str, source: CorpusSourceConfig) -> int:
        if source.hold_out == "all":
            return STAYS
        held_out = any(piece.split for piece in pieces(text, source, self._config.corpus))
        return HELD_OUT if held_out else TRAINED_ON


class State(NamedTuple):
    """How far signing is. blocks: documents of each block; input, cursor: where the next chunk begins."""

    plan: str
    blocks: list[int]
    input: int
    cursor: dict[str, int] | None
    rejected: int


def plan(config: PrepareConfig, identities: list[dict[str, Any]]) -> str:
    """Return the SHA-256 of everything the signatures depend on."""
    sources = {}
    for name, source in config.corpus.sources.items():
        settings = dataclasses.asdict(source)
        sources[name] = {key: value for key, value in settings.items() if key not in UNUSED}
    record = {
        "format": FORMAT,
        "near_duplicates": dataclasses.asdict(config.near_duplicates),
        "sources": sources,
        "valid_share": config.corpus.valid_share,
        "valid_characters": config.corpus.valid_characters,
        "max_line_bytes": config.work.max_line_bytes,
        "chunks": [CHUNK_BYTES, BLOCK_BYTES],
        "inputs": identities,
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_state(folder: Path, plan: str) -> State:
    """Read what a run of the same plan left; the beginning, when there was none."""
    try:
        state = State(**untrusted_io.read_object(folder / "state.json"))
    except (FileNotFoundError, ValueError, TypeError):
        state = None
    return state if state is not None and state.plan == plan else State(plan, [], 0, None, 0)


def sign(config: PrepareConfig, inputs: list[Input], folder: Path, state: State, bar: Any) -> State:
    """Sign what `state` leaves to do. bar: tqdm over bytes on disk.

    Raises what readers raise, and under work.on_error=stop the first bad document (DataError).
    """
    drop_blocks(folder, len(state.blocks))
    limit = block_documents(config.near_duplicates)
    tasks, workers = _tasks(config, inputs, state), config.work.workers
    with (
        storage(str(folder)),
        open(folder / "documents.bin", "ab") as table,
        closing(map_ordered(Worker, (config, folder), tasks, workers, chunk_bytes=CHUNK_BYTES)) as results,
    ):
        table.truncate(sum(state.blocks) * DOCUMENTS.itemsize)
        held: list[Signed] = []
        ticket = Ticket(state.input, 0, {})
        n_held = shown = 0
        begins = np.cumsum([0, *(input.size for input in inputs)])
        for ticket, done in results:
            if done.reject is not None:
                raise done.reject.error(inputs[ticket.input].path)
            read = int(begins[ticket.input]) + ticket.position
            bar.update(read - shown)
            held.append(done)
            shown, n_held = read, n_held + len(done.records)
            if n_held >= limit:
                state = _write(config, folder, table, state, held, ticket)
                held, n_held = [], 0
        if held:
            state = _write(config, folder, table, state, held, ticket)
    return state


def _tasks(config: PrepareConfig, inputs: list[Input], state: State) -> Iterator[tuple[Ticket, tuple[Input, Chunk]]]:
    work = dataclasses.replace(config.work, chunk_bytes=CHUNK_BYTES)
    for at in range(state.input, len(inputs)):
        source = config.corpus.sources[inputs[at].source]
        for chunk in chunks(inputs[at], source, work, state.cursor if at == state.input else None):
            yield Ticket(at, chunk.position, chunk.after), (inputs[at], chunk)


def _write(
    config: PrepareConfig, folder: Path, table: IO[bytes], state: State, held: list[Signed], last: Ticket
) -> State:
    """Write a block: signatures, then its documents, then the state that says that both are there."""
    starts = np.cumsum([0, *(len(chunk.records) for chunk in held)])
    numbers = np.concatenate([start + chunk.signed for start, chunk in zip(starts, held, strict=False)])
    signatures = np.concatenate([chunk.signatures for chunk in held])
    # The state is written last: a kill before it leaves files that the next run drops and truncates.
    write_block(folder, len(state.blocks), numbers, signatures, config.near_duplicates)
    for chunk in held:
        table.write(chunk.records.tobytes())
    flush_to_disk(table)
    state = State(
        state.plan,
        [*state.blocks, int(starts[-1])],
        last.input,
        last.after,
        state.rejected + sum(chunk.rejected for chunk in held),
    )
    replace(folder / "state.json", json.dumps(state._asdict()).encode())
    return state
