"""near_duplicates: list documents that resemble another one, so that `tokenize` leaves them out.

Made by datatrove's MinHash (`similar.near`). Of documents that resemble each other, directly or through others, one
stays: of an evaluation set before a held-out one before one that is trained on, then the first by source, input, line.
So near-copies of held-out text leave the training set. Evaluation sets (hold_out: all) stay whole.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coca_train.config.corpus_schema import NearDuplicatesConfig, PrepareConfig
from coca_train.data.readers import all_inputs
from coca_train.data.readers.base import Input, escape
from coca_train.data.storage import open_locked, storage
from coca_train.runtime.durable import replace, sync_folder
from coca_train.runtime.errors import UserError
from data_prep import minhash
from data_prep.fitting import fit_valid_share
from data_prep.messages import bar
from data_prep.minhash import DOCUMENTS, FORMAT, Clusters, State, plan, read_state, sign
from data_prep.selection import Rules
from data_prep.workers import map_ordered

LISTED = np.dtype([("input", "<u4"), ("line", "<u8")])


class Counts(NamedTuple):
    """Of one source: documents the rules keep; how many of them go; how many of those are copies to the letter."""

    documents: int
    left_out: int
    exact: int


class Matcher:
    """Finds the matches of a bucket; made once in each process."""

    def __init__(self, folder: Path, config: NearDuplicatesConfig, n_blocks: int) -> None:
        self._arguments = (config, n_blocks)
        self._folder = folder

    def __call__(self, bucket: int) -> Path:
        return minhash.match(self._folder, bucket, *self._arguments)


def run(config: PrepareConfig) -> None:
    """Write near_duplicates/<source>.npy for every source, and print what was found.

    Raises UserError E-RAW-25 (datatrove is missing) and E-RUN-12 (open files), DataError of the readers and E-TOK-15
    (two at once), StorageError.
    """
    if config.work.shard != "0/1":
        raise UserError(
            f"E-RAW-28 shard={config.work.shard}: near_duplicates holds every document against every other one, so it "
            "is not done in shards. Fix: leave shard= away"
        )
    target = Path(config.corpus.dir) / "near_duplicates"
    folder = target / ".work"
    for source in config.corpus.sources.values():
        Rules(source.filter)  # what is missing is reported before hours of reading
    minhash.Signer(config.near_duplicates, folder)
    config = fit_valid_share(config)
    with storage(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    with open_locked(str(folder / "lock")):
        inputs = all_inputs(config.corpus.sources)
        identities = [input.identity() for input in inputs]
        state = _signed(config, inputs, identities, folder)
        counts, example = _publish(config, state, folder, target)
        _report(target, state.plan, counts, inputs, identities)
        shutil.rmtree(folder)
    print(_table(config, counts, state.rejected, example, inputs))
    if (Path(config.corpus.dir) / "manifest.json").exists():
        note = "the corpus is merged already: this list counts when it is tokenized again, into another corpus.dir"
        print(f"note: {note}", file=sys.stderr)


def _signed(config: PrepareConfig, inputs: list[Input], identities: list[dict[str, Any]], folder: Path) -> State:
    """Sign all documents and find the matches of every bucket."""
    state = read_state(folder, plan(config, identities))
    if state.blocks:
        print(f"going on after {sum(state.blocks):,} documents that are signed already", file=sys.stderr)
    total = sum(input.size for input in inputs) or None
    with bar("signing", total, config.work.progress_bar) as progress:
        state = sign(config, inputs, folder, state, progress)
    matcher = (folder, config.near_duplicates, len(state.blocks))
    buckets = range(config.near_duplicates.buckets)
    if not state.blocks:
        return state
    with bar("matching", len(buckets), config.work.progress_bar, unit="bucket", unit_scale=False) as progress:
        tasks = ((bucket, bucket) for bucket in buckets)
        with closing(map_ordered(Matcher, matcher, tasks, config.work.workers)) as results:
            for _ in results:
                progress.update()
    return state


def _publish(
    config: PrepareConfig, state: State, folder: Path, target: Path
) -> tuple[dict[str, Counts], tuple[np.void, np.void] | None]:
    """Write the lists, one a source, under temporary names, then rename them. Gives counts, and an example: a document
    that goes and the one that stays."""
    n = sum(state.blocks)
    table = np.memmap(folder / "documents.bin", DOCUMENTS, "r", shape=(n,)) if n else np.empty(0, DOCUMENTS)
    clusters = Clusters(folder / "groups.bin", table["rank"])
    starts = np.cumsum([0, *state.blocks])[:-1]
    for bucket in range(config.near_duplicates.buckets if n else 0):
        clusters.join(minhash.matches(folder / "matches" / f"{bucket:05d}_00.dups", starts))
    names = sorted(config.corpus.sources)
    documents, left_out, exact = (np.zeros(len(names), np.int64) for _ in range(3))
    for rows in _blocks(table):
        documents += np.bincount(rows["source"], minlength=len(names))
    example = None
    for pairs in clusters.left_out():
        gone, stays = table[pairs[:, 0]], table[pairs[:, 1]]
        same = gone["digest"] == stays["digest"]
        left_out += np.bincount(gone["source"], minlength=len(names))
        exact += np.bincount(gone["source"][same], minlength=len(names))
        if example is None and not same.all():
            first = int(np.argmin(same))
            example = (gone[first].copy(), stays[first].copy())
    _write_lists(names, left_out, clusters, table, target)
    counts = zip(names, documents.tolist(), left_out.tolist(), exact.tolist(), strict=True)
    return {name: Counts(*numbers) for name, *numbers in counts}, example


def _blocks(table: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(table), 1 << 18):
        yield table[begin : begin + (1 << 18)]


def _write_lists(names: list[str], left_out: np.ndarray, clusters: Clusters, table: np.ndarray, target: Path) -> None:
    with storage(str(target)):
        lists = {}
        for number, name in enumerate(names):
            shape = (int(left_out[number]),)
            lists[number] = np.lib.format.open_memmap(f"{target / name}.npy.tmp", "w+", LISTED, shape)
        filled = np.zeros(len(names), np.int64)
        for pairs in clusters.left_out():
            gone = table[pairs[:, 0]]
            for number in np.unique(gone["source"]).tolist():
                mine = gone[gone["source"] == number]
                place = lists[number][filled[number] : filled[number] + len(mine)]
                place["input"], place["line"] = mine["input"], mine["line"]
                filled[number] += len(mine)
        for number, name in enumerate(names):
            lists[number].flush()
            with open(f"{target / name}.npy.tmp", "rb") as file:
                os.fsync(file.fileno())
        # The old report goes before the first new list appears, and the new one comes after the last: a kill in between
        # leaves lists that merge refuses, never lists of two runs.
        (target / "report.json").unlink(missing_ok=True)  # without it the lists are not whole, and merge takes none
        for name in names:
            os.replace(f"{target / name}.npy.tmp", f"{target / name}.npy")
        sync_folder(target)


def _report(
    target: Path, plan: str, counts: dict[str, Counts], inputs: list[Input], identities: list[dict[str, Any]]
) -> None:
    """Write report.json, last: it says that the lists are whole, what was found, and in which files."""
    files: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
    for input, identity in zip(inputs, identities, strict=True):
        files[input.source].append(identity)
    counts_by_source = {name: count._asdict() for name, count in counts.items()}
    record = {"format": FORMAT, "plan": plan, "sources": counts_by_source, "inputs": files}
    path = target / "report.json"
    with storage(str(path)):
        replace(path, json.dumps(record, indent=1).encode())


def _table(
    config: PrepareConfig,
    counts: dict[str, Counts],
    rejected: int,
    example: tuple[np.void, np.void] | None,
    inputs: list[Input],
) -> str:
    total = Counts(*(sum(column) for column in zip(*counts.values(), strict=True)))
    width = max(len(name) for name in [*counts, "source"])
    lines = [f"{'source':<{width}}  {'documents':>13}  {'left out':>11}  {'share':>7}  {'of these exact copies':>21}"]
    for name, count in [*counts.items(), ("all", total)]:
        share = count.left_out / count.documents if count.documents else 0.0
        lines.append(
            f"{name:<{width}}  {count.documents:>13,}  {count.left_out:>11,}  {share:>7.2%}  {count.exact:>21,}"
        )
    if rejected:
        lines.append(f"{rejected:,} bad documents were passed over (work.on_error=skip); tokenize lists them")
    if example is not None:
        paths = {(input.source, input.number): input.path for input in inputs}
        names = sorted(config.corpus.sources)
        gone, stays = (f"{escape(paths[names[row['source']], int(row['input'])])}:{row['line']}" for row in example)
        lines.append(f"for example {gone} goes, because {stays} stays")
    return "\n".join(lines)
