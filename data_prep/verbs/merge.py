"""python -m data_prep merge: parts into the corpus, one .bin/.idx pair a source and split, and a manifest of them.

Everything is made in <dir>/.merging and moved into <dir> at the end, the manifest last: a corpus is finished when its
manifest is there, and not before. Killed anywhere, the same command ends with the same bytes: `.merging/publishing`
lists what a move that was cut short may have moved.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import best_dtype
from coca_train.data.storage import flush_to_disk, open_locked, storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import sync_folder
from coca_train.runtime.errors import DataError, StorageError
from data_prep.collect import Collection, Part, format_place, gather_parts
from data_prep.concatenate import ENDS, DatasetRecord, DatasetWriter, copy_part
from data_prep.duplicates import DUPLICATE, DUPLICATE_ID, KEPT, Stretch, judge
from data_prep.fitting import fit_valid_share
from data_prep.manifest import NAME, Manifest, SourceRecord, build, describe, dump, existing, settings_now
from data_prep.messages import bar, say
from data_prep.parts import COUNTS, SPLITS, FileRecord, RejectRecord, n_read

REASONS = {DUPLICATE: "duplicates", DUPLICATE_ID: "duplicate_ids"}
BYTES_A_DOCUMENT = 160  # index, origins and what is on the disk on the way
SCRATCH, MARK = ".merging", "publishing"


def merge(config: PrepareConfig) -> Manifest:
    """Make the corpus of its parts and return its manifest; an existing corpus is left as it is.

    Raises DataError E-TOK-15 (another process at work), 23 (parts missing), 18 (other settings), 08 (damaged part),
    E-RAW-19 (input changed), 21, 22 (ids), 27 (nothing left of a source), E-PREP-02 (files that are not ours),
    StorageError E-IO-01.
    """
    dir = Path(config.corpus.dir)
    manifest = existing(config)
    if manifest is not None and not _leftovers(config, dir):
        return manifest
    if not dir.is_dir():
        raise DataError(f"E-TOK-23 {dir}: no such folder, so nothing is tokenized. Fix: python -m data_prep tokenize")
    with storage(str(dir)):
        try:
            lock = open_locked(str(dir / ".merge.lock"))
        except DataError:
            raise DataError(
                f"E-TOK-15 {dir}: another process is tokenizing or merging this corpus; one at a time. Fix: wait for "
                "it to end"
            ) from None
        with lock:
            # Looked at again under the lock: another process may have finished the corpus since.
            if (manifest := existing(config)) is None:
                manifest = _make(config, dir)
            for path in _leftovers(config, dir):
                shutil.rmtree(path)
    return manifest


def _leftovers(config: PrepareConfig, dir: Path) -> list[Path]:
    """List what is of no use once the manifest is there; parts of other sources stay."""
    parts = dir / "parts"
    ours = [path for name in config.corpus.sources if (path := parts / name).exists()]
    if parts.is_dir() and len(ours) == len(list(parts.iterdir())):
        ours = [parts]
    return [path for path in (dir / SCRATCH, *ours) if path.exists()]


def _make(config: PrepareConfig, dir: Path) -> Manifest:
    tokenizer = Tokenizer(config.tokenizer.path)
    collection = gather_parts(config, tokenizer)
    _undo(dir)
    for path in (dir / f"{name}_{split}{end}" for name in collection.names for split in SPLITS for end in ENDS):
        if path.exists():
            raise DataError(
                f"E-PREP-02 {path}: is there already, but no manifest.json says what it is; nothing is overwritten. "
                "Fix: choose another corpus.dir, or move this file away"
            )
    needed = BYTES_A_DOCUMENT * collection.n_documents + sum(part.n_bytes for part in collection.parts)
    if (free := shutil.disk_usage(dir).free) < needed:  # now, not after an hour of copying
        raise StorageError(
            f"E-IO-01 {dir}: {free / 1e9:.2f} GB are free, merging needs {needed / 1e9:.2f} GB. Fix: free space, or "
            "move the folder to a larger disk"
        )
    try:
        (dir / SCRATCH).mkdir()
        files, manifest = _build(config, tokenizer, collection, dir / SCRATCH)
        _publish(dir, dir / SCRATCH, collection.names, files, manifest)
    except BaseException:
        # With the manifest in its place the corpus is finished, whatever failed afterwards.
        if not (dir / NAME).exists():
            _undo(dir)
        raise
    return manifest


def _undo(dir: Path) -> None:
    """Undo a move that was cut short, and remove everything else that was in progress."""
    try:
        moved = untrusted_io.read_json(dir / SCRATCH / MARK)
    except (FileNotFoundError, ValueError):  # none, or killed while it was written: nothing was moved yet
        moved = []
    for name in moved:
        (dir / name).unlink(missing_ok=True)
    if (dir / SCRATCH).exists():
        shutil.rmtree(dir / SCRATCH)


@dataclass(frozen=True)
class Verdicts:
    """What becomes of the documents. of_all: uint8 (all documents,); drop: exact duplicates go."""

    of_all: np.ndarray
    drop: bool

    def stretches(self, part: Part) -> Iterator[tuple[Stretch, np.ndarray]]:
        """Yield the stretches of a part, each with its verdicts."""
        for stretch in part.stretches():
            yield stretch, self.of_all[stretch.first : stretch.first + len(stretch.documents)]

    def stay(self, verdict: np.ndarray) -> np.ndarray:
        """Return which documents stay, bool (n,)."""
        return (verdict == KEPT) | ((verdict == DUPLICATE) & (not self.drop))


def _build(
    config: PrepareConfig, tokenizer: Tokenizer, collection: Collection, scratch: Path
) -> tuple[list[str], Manifest]:
    """Make everything in the scratch folder; return the file names in the order of publishing, and the manifest."""
    sources, progress_bar = config.corpus.sources, config.work.progress_bar
    named = frozenset(i for i, name in enumerate(collection.names) if sources[name].id_field is not None)
    say(f"merging: looking for duplicates among {collection.n_documents:,} documents", progress_bar)
    of_all, clash = judge(collection.stretches, collection.n_documents, named)
    if clash is not None and config.work.on_error == "stop":
        raise DataError(
            f"E-RAW-22 {collection.format_place(clash.document)}: has the id of "
            f"{collection.format_place(clash.first)}, but another text; ids must be unique within a source. Fix: "
            "remove one, set id_field to a field that is unique or to null; or work.on_error=skip"
        )
    verdicts = Verdicts(of_all, config.corpus.exact_duplicates == "drop")
    dtype = np.dtype(best_dtype(tokenizer.vocab_size))
    counts: dict[str, dict[str, int]] = {}
    datasets: dict[str, DatasetRecord] = {}
    files: dict[str, FileRecord] = {}
    with bar("merging", sum(part.n_bytes for part in collection.parts), progress_bar) as progress:
        for source, name in enumerate(collection.names):
            parts = [part for part in collection.parts if part.source == source]
            counts[name], sizes = _count(parts, verdicts)
            _check_source(config, name, counts[name])
            _write_rejects(scratch / f"{name}.rejects", parts, verdicts)
            with ExitStack() as stack:
                writers = {
                    split: stack.enter_context(DatasetWriter(scratch, f"{name}_{split}", dtype, size))
                    for split, size in zip(SPLITS, sizes, strict=True)
                    if size
                }
                for part in parts:
                    kept = ((stretch, verdicts.stay(verdict)) for stretch, verdict in verdicts.stretches(part))
                    copy_part(part, kept, dtype.itemsize, writers)
                    progress.update(part.n_bytes)
            for writer in writers.values():
                datasets[writer.name] = writer.counts
                files |= writer.files
    records: dict[str, SourceRecord] = {
        name: {
            "group": sources[name].group,
            "licence": sources[name].licence,
            "about": sources[name].about,
            "inputs": collection.identities[name],
            "counts": counts[name],
        }
        for name in collection.names
    }
    corpus, now = config.corpus, settings_now(config, tokenizer)
    return list(files), build(corpus.name, corpus.dir, tokenizer, now, records, datasets, files)


def _count(parts: Iterable[Part], verdicts: Verdicts) -> tuple[dict[str, int], list[int]]:
    """Count what became of the documents of a source, and how many stay in each split."""
    counts = Counter({"read": 0, "kept": 0, **dict.fromkeys(REASONS.values(), 0), "rejected": 0})
    sizes = np.zeros(len(SPLITS), np.int64)
    for part in parts:
        record = part.record
        counts.update({rule: n for rule, n in record["counts"].items() if rule not in COUNTS})
        counts["rejected"] += len(record["rejects"])
        counts["read"] += n_read(record["counts"], record["rejects"])
        for stretch, verdict in verdicts.stretches(part):
            counts.update({reason: int((verdict == number).sum()) for number, reason in REASONS.items()})
            sizes += np.bincount(stretch.documents["split"][verdicts.stay(verdict)], minlength=len(SPLITS))
    counts["kept"] = int(sizes.sum())
    return dict(counts), sizes.tolist()


def _check_source(config: PrepareConfig, name: str, counts: dict[str, int]) -> None:
    """Refuse a source of which nothing is left, or too much of which has another document's id."""
    if not counts["kept"]:
        why = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in counts.items() if n and reason != "read")
        raise DataError(
            f"E-RAW-27 corpus.sources.{name}: no document is left of {counts['read']:,} ({why or 'none read'}). "
            "Fix: check its filter and files, or remove the source"
        )
    if counts["duplicate_ids"] > (limit := config.work.max_reject_share) * counts["read"]:
        raise DataError(
            f"E-RAW-21 corpus.sources.{name}: {counts['duplicate_ids']:,} of {counts['read']:,} documents have the id "
            f"of another document and another text, more than work.max_reject_share={limit}. Fix: check id_field, or "
            "set it to null"
        )


def _write_rejects(path: Path, parts: Iterable[Part], verdicts: Verdicts) -> None:
    """Write one JSON object a line, in the order of the input: rejected documents, and those with a taken id."""
    with open(path, "w", encoding="utf-8") as file:
        for part in parts:
            rows: list[RejectRecord] = list(part.record["rejects"])
            for stretch, verdict in verdicts.stretches(part):
                for line in stretch.documents["line"][verdict == DUPLICATE_ID].tolist():
                    reason = f"{format_place(part.input, line)} has the id of an earlier document, but another text"
                    rows.append({"line": line, "byte": None, "code": "E-RAW-22", "reason": reason, "excerpt": ""})
            for row in sorted(rows, key=lambda row: row["line"]):
                file.write(json.dumps({"input": part.input.path, **row}, sort_keys=True) + "\n")
        flush_to_disk(file)


def _publish(dir: Path, scratch: Path, names: list[str], files: list[str], manifest: Manifest) -> None:
    """Move everything into its place, the manifest last."""
    data = dump(manifest)
    manifest["sha256"] = json.loads(data)["sha256"]
    # First everything is on the disk under its scratch name, and MARK with the list of what will move. From then on a
    # kill leaves files that `_undo` knows. The datasets move, their names are flushed, and only then the manifest
    # moves: a reader that finds it finds everything it describes.
    for name, content in ((NAME, data), (MARK, json.dumps(files).encode())):
        with open(scratch / name, "wb") as file:
            file.write(content)
            flush_to_disk(file)
    sync_folder(scratch)
    sync_folder(dir)  # the name of the scratch folder: a power cut must not leave what moved without the list of it
    for name in files:
        os.rename(scratch / name, dir / name)
    for name in names:
        rejects, target = scratch / f"{name}.rejects", dir / "rejects" / f"{name}.jsonl"
        if rejects.stat().st_size:
            target.parent.mkdir(exist_ok=True)
            os.rename(rejects, target)
            sync_folder(target.parent)
        else:
            target.unlink(missing_ok=True)
    sync_folder(dir)
    os.rename(scratch / NAME, dir / NAME)
    sync_folder(dir)


def run(config: PrepareConfig) -> None:
    config = fit_valid_share(config)
    was_finished = existing(config) is not None
    manifest = merge(config)
    if was_finished:
        print(f"{config.corpus.dir}: is there already, nothing to do\n")
    print(describe(manifest))
