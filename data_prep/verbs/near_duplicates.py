"""near_duplicates: list documents that resemble another one, so that `tokenize` leaves them out.

Made by datatrove's MinHash (data_prep/minhash.py). Of documents that resemble each other, directly or through others,
one stays: of an evaluation set before a held-out one before one that is trained on, then the first by source, input,
line. So near-copies of held-out text leave the training set. Evaluation sets (hold_out: all) stay whole.
"""

import json
import shutil
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.readers import all_inputs
from coca_train.data.readers.base import Input, escape
from coca_train.data.storage import flush_to_disk, open_locked, storage
from coca_train.runtime.durable import replace, sync_folder
from coca_train.runtime.errors import UserError
from coca_train.runtime.printing import plain
from data_prep import minhash
from data_prep.collect import NEAR
from data_prep.fitting import fit_valid_share
from data_prep.messages import bar
from data_prep.minhash import DOCUMENTS, FORMAT, STAYS, State, plan, read_matches, read_state, representatives, sign
from data_prep.selection import Rules
from data_prep.workers import map_ordered


class Counts(NamedTuple):
    """Of one source: documents the rules keep; how many of them go; how many of those are copies to the letter."""

    documents: int
    left_out: int
    exact: int


def run(config: PrepareConfig) -> None:
    """Write near_duplicates/<source>.npy for every source, and print what was found.

    Raises UserError E-RAW-25 (datatrove is missing) and E-RUN-12 (open files), DataError of the readers and E-TOK-15
    (two at once), StorageError.
    """
    if config.work.shard != "0/1":
        raise UserError(
            f"E-RAW-28 shard={config.work.shard}: near_duplicates compares every document with every other one, so it "
            "is not done in shards. Fix: omit shard="
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
        state = _sign_and_match(config, inputs, identities, folder)
        counts, example = _publish(config, state, folder, target)
        _report(target, state.plan, counts, inputs, identities)
        shutil.rmtree(folder)
    print(_table(counts), end="")
    if state.rejected:
        print(f"{state.rejected:,} bad documents were skipped (work.on_error=skip); tokenize lists them")
    if example is not None:
        paths, names = {(input.source, input.number): input.path for input in inputs}, list(counts)
        gone, stays = (f"{escape(paths[names[row['source']], int(row['input'])])}:{row['line']}" for row in example)
        print(f"for example {gone} goes, because {stays} stays")
    if (Path(config.corpus.dir) / "manifest.json").exists():
        note = "the corpus is merged already: this list counts when it is tokenized again, into another corpus.dir"
        print(f"note: {note}", file=sys.stderr)


def _sign_and_match(
    config: PrepareConfig, inputs: list[Input], identities: list[dict[str, Any]], folder: Path
) -> State:
    """Sign all documents and find the matches of every bucket."""
    state, near = read_state(folder, plan(config, identities)), config.near_duplicates
    if state.blocks:
        print(f"going on after {sum(state.blocks):,} documents that are signed already", file=sys.stderr)
    total = sum(input.size for input in inputs) or None
    with bar("signing", total, config.work.progress_bar) as progress:
        state = sign(config, inputs, folder, state, progress)
    if state.blocks:
        with bar("matching", near.buckets, config.work.progress_bar, unit="bucket", unit_scale=False) as progress:
            matcher, tasks = (minhash.match, folder, near, len(state.blocks)), ((k, k) for k in range(near.buckets))
            with closing(map_ordered(partial, matcher, tasks, config.work.workers)) as results:
                for _ in results:
                    progress.update()
    return state


def _publish(
    config: PrepareConfig, state: State, folder: Path, target: Path
) -> tuple[dict[str, Counts], tuple[np.void, np.void] | None]:
    """Write the lists, one a source, under temporary names, then rename them.

    Returns counts, and an example: a document that goes and the one that stays.
    """
    n, names = sum(state.blocks), sorted(config.corpus.sources)
    table = np.memmap(folder / "documents.bin", DOCUMENTS, "r", shape=(n,)) if n else np.empty(0, DOCUMENTS)
    starts = np.cumsum([0, *state.blocks])[:-1]
    files = (folder / "matches" / f"{k:05d}_00.dups" for k in range(config.near_duplicates.buckets if n else 0))
    stays = representatives(table["rank"], (read_matches(path, starts) for path in files))
    numbers = np.flatnonzero((stays != np.arange(n)) & (table["rank"] != STAYS))
    gone, kept = table[numbers], table[stays[numbers]]
    exact = gone["digest"] == kept["digest"]
    counts = {}
    with storage(str(target)):
        for number, name in enumerate(names):
            of_source = gone["source"] == number
            documents = int((table["source"] == number).sum())
            counts[name] = Counts(documents, int(of_source.sum()), int((of_source & exact).sum()))
            with open(f"{target / name}.npy.tmp", "wb") as file:
                np.save(file, gone[["input", "line"]][of_source].astype(NEAR), allow_pickle=False)
                flush_to_disk(file)
        # The old report goes before the first new list appears, and the new one comes after the last: a kill in between
        # leaves lists that merge refuses, never lists of two runs.
        (target / "report.json").unlink(missing_ok=True)
        for name in names:
            (target / f"{name}.npy.tmp").replace(target / f"{name}.npy")
        sync_folder(target)
    return counts, next(iter(zip(gone[~exact][:1], kept[~exact][:1], strict=True)), None)


def _report(
    target: Path, plan: str, counts: dict[str, Counts], inputs: list[Input], identities: list[dict[str, Any]]
) -> None:
    """Write report.json, last: it says that the lists are whole, what was found, and in which files."""
    files: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
    for input, identity in zip(inputs, identities, strict=True):
        files[input.source].append(identity)
    counts_by_source = {name: count._asdict() for name, count in counts.items()}
    record = {"format": FORMAT, "plan": plan, "sources": counts_by_source, "inputs": files}
    with storage(str(target)):
        replace(target / "report.json", json.dumps(record, indent=1).encode())


def _table(counts: dict[str, Counts]) -> str:
    total = Counts(*(sum(column) for column in zip(*counts.values(), strict=True)))
    rows = []
    for name, count in [*counts.items(), ("all", total)]:
        share = count.left_out / count.documents if count.documents else 0.0
        rows.append([name, f"{count.documents:,}", f"{count.left_out:,}", f"{share:.2%}", f"{count.exact:,}"])
    return plain(("source", "documents", "left out", "share", "of these exact copies"), rows)
