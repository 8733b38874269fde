"""MinHash signatures of documents, the matches between them as datatrove computes them, and the groups that they form.

A document becomes the set of its n-grams of words (lower case, no punctuation, numbers as 0); 14 x 8 minima of random
hashes of that set are its signature. Two documents match where the 8 of one bucket agree, which happens with
probability 1 - (1 - s^8)^14 at a Jaccard similarity s: 0.92 at s = 0.8, 0.9996 at 0.9. (Broder 1997; FineWeb, arXiv
2406.17557, section 3.) datatrove makes the signatures and finds the matches; the files between the two are its own.
datatrove's third step keeps every match in memory and one document of a group, whichever; here matches are joined
bucket by bucket, and the document that stays is the first by rank, then by number.
"""

import dataclasses
import hashlib
import json
import resource
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from coca_train.config.corpus_schema import NearDuplicatesConfig, PrepareConfig
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
    from fsspec.implementations.local import LocalFileSystem

    return datatrove("io", WHERE).DataFolder(str(folder), fs=LocalFileSystem())


class Signer:
    """Texts to signatures. Raises UserError E-RAW-25 when datatrove, or the word splitter it needs, is missing."""

    def __init__(self, config: NearDuplicatesConfig, folder: Path) -> None:
        option = f"{WHERE}.language={config.language}"
        splitter = _words() if config.language == WORDS else word_splitter(config.language, option)
        minhash = datatrove("pipeline.dedup.minhash", WHERE)
        self._step = minhash.MinhashDedupSignature(_local(folder), _settings(config), language=splitter)

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


def _words() -> Any:
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
        path = folder / f"bucket_{bucket:03d}" / f"{block:05d}.minhash.sig"
        with storage(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                file.write(records.tobytes())
                flush_to_disk(file)


def match(folder: Path, config: NearDuplicatesConfig, n_blocks: int, bucket: int) -> Path:
    """Find the matches of one bucket; return the file with them (see `read_matches`).

    Raises UserError E-RUN-12 where a process may not open a file of each block at once.
    """
    needed = n_blocks + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UserError(
                f"E-RUN-12 {WHERE}: a process may open {hard} files; {needed} are needed, one for each block of "
                f"documents. Fix: ulimit -n {needed}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    step = datatrove("pipeline.dedup.minhash", WHERE).MinhashDedupBuckets(
        _local(folder), _local(folder / "matches"), config=_settings(config), lines_to_buffer=READ_SIGNATURES
    )
    path = folder / "matches" / f"{bucket:05d}_00.dups"
    with storage(str(path)):
        step.run(rank=bucket, world_size=config.buckets)
    return path


def read_matches(path: Path, block_starts: np.ndarray) -> np.ndarray:
    """Return the numbers of two documents that match, int64 (n, 2). block_starts: (blocks,), where each begins."""
    pairs = np.fromfile(path, "<u4").reshape(-1, 2, 2).astype(np.int64)
    return block_starts[pairs[:, :, 0]] + pairs[:, :, 1]


STAYS, HELD_OUT, TRAINED_ON = range(3)  # ranks; STAYS is never left out: a document of an evaluation set


def representatives(ranks: np.ndarray, matches: Iterable[np.ndarray]) -> np.ndarray:
    """Return for each document the one of its group that stays, the first by rank, then by number: int64 (n,).

    ranks: uint8 (n,). matches: arrays (k, 2); documents that match, directly or through others, are one group.
    Memory: some 60 bytes a document, and 24 a match of one array.
    """
    n = len(ranks)
    stays = np.arange(n)
    for pairs in matches:
        rows, columns = np.append(np.arange(n), pairs[:, 0]), np.append(stays, pairs[:, 1])
        graph = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(n, n))
        group = connected_components(graph, directed=False)[1]
        order = np.lexsort((ranks, group))  # stable: by number among equal ranks
        stays = order[np.unique(group[order], return_index=True)[1]][group]
    return stays


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
        self._rules = cache(lambda name: Rules(config.corpus.sources[name].filter))

    def __call__(self, task: tuple[Input, Chunk]) -> Signed:
        input, chunk = task
        config, source = self._config, self._config.corpus.sources[input.source]
        rules, number = self._rules(input.source), self._names.index(input.source)
        records, signed, signatures, rejected = [], [], [], 0
        stop = None
        for document in documents(input.path, source, config.work, chunk):
            if isinstance(document, Reject):
                rejected += 1
                if config.work.on_error == "stop":
                    stop = document
                    break
            elif rules.refuses(document) is None:
                signature = self._signer.signature(document.text)
                if signature is not None:
                    signed.append(len(records))
                    signatures.append(signature)
                digest, rank = int.from_bytes(digest_of(document.text)[:8], "little"), STAYS
                if source.hold_out != "all":
                    held_out = any(piece.split for piece in pieces(document.text, source, config.corpus))
                    rank = HELD_OUT if held_out else TRAINED_ON
                records.append((number, input.number, document.line, rank, digest))
        width = config.near_duplicates.buckets * config.near_duplicates.hashes_per_bucket
        stacked = np.stack(signatures) if signatures else np.empty((0, width), np.uint64)
        return Signed(np.array(records, DOCUMENTS), np.array(signed, np.int64), stacked, rejected, stop)


class State(NamedTuple):
    """How far signing is. blocks: documents of each block; input, cursor: where the next chunk begins."""

    plan: str
    blocks: list[int]
    input: int
    cursor: dict[str, int] | None
    rejected: int


def plan(config: PrepareConfig, identities: list[dict[str, Any]]) -> str:
    """Return the SHA-256 of everything the signatures depend on."""
    record = {
        "format": FORMAT,
        "near_duplicates": dataclasses.asdict(config.near_duplicates),
        "sources": {
            name: {key: value for key, value in dataclasses.asdict(source).items() if key not in UNUSED}
            for name, source in config.corpus.sources.items()
        },
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
    for path in folder.glob("bucket_*/*.minhash.sig"):  # what a killed run left
        if int(path.name.split(".")[0]) >= len(state.blocks):
            path.unlink()
    width = config.near_duplicates.buckets * config.near_duplicates.hashes_per_bucket
    limit = max(1, BLOCK_BYTES // (8 * width))  # documents of a block
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
