"""First step of near-duplicates: every document of every source signed, in blocks on disk; a killed run goes on.

Below the work folder: documents.bin (DOCUMENTS, a record for each document that the rules keep, in order: source by
name, input, line), bucket_*/<block>.minhash.sig (see `near`), and state.json, written after each block.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from coca_train.data.storage import flush_to_disk, storage
from coca_train.runtime import outside
from data_prep.readers import chunks, documents
from data_prep.readers.base import Chunk, Input, Reject
from data_prep.schema import CorpusSourceConfig, PrepareConfig
from data_prep.selection.rules import Rules, digest_of, pieces
from data_prep.similar import minhash
from data_prep.similar.minhash import HELD_OUT, STAYS, TRAINED_ON
from data_prep.tokenizing.pool import ordered

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
        self._signer = minhash.Signer(config.near_duplicates, folder)
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
        width = minhash.n_hashes(self._config.near_duplicates)
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
    """SHA-256 of everything the signatures depend on."""
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
        "chunks": [CHUNK_BYTES, minhash.BLOCK_BYTES],
        "inputs": identities,
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_state(folder: Path, plan: str) -> State:
    """What a run of the same plan left behind; the beginning, when there was none."""
    try:
        state = State(**outside.read_object(folder / "state.json"))
    except (FileNotFoundError, ValueError, TypeError):
        state = None
    return state if state is not None and state.plan == plan else State(plan, [], 0, None, 0)


def _write_state(folder: Path, state: State) -> None:
    path = folder / "state.json"
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
        flush_to_disk(file)
    os.replace(f"{path}.tmp", path)


def sign(config: PrepareConfig, inputs: list[Input], folder: Path, state: State, bar: Any) -> State:
    """Sign what `state` leaves to do. bar: tqdm over bytes on disk.

    Raises what readers raise, and under work.on_error=stop the first bad document (DataError).
    """
    minhash.drop_blocks(folder, len(state.blocks))
    limit = minhash.block_documents(config.near_duplicates)
    tasks, workers = _tasks(config, inputs, state), config.work.workers
    with (
        storage(str(folder)),
        open(folder / "documents.bin", "ab") as table,
        closing(ordered(Worker, (config, folder), tasks, workers, chunk_bytes=CHUNK_BYTES)) as results,
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
    minhash.write_block(folder, len(state.blocks), numbers, signatures, config.near_duplicates)
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
    _write_state(folder, state)
    return state
