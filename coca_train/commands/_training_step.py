"""The batch of a training step, from the directory of its run alone: which tokens of which documents the model saw."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from coca_train.checkpoint.opening import read_record
from coca_train.config.schema import DataConfig
from coca_train.data.batch import combine_digests, digest_of
from coca_train.data.curriculum import piece_length
from coca_train.data.mixture import Mixture, fingerprint_diff
from coca_train.data.packing import Edges
from coca_train.data.provenance import Passage, Provenance
from coca_train.data.readers.base import escape
from coca_train.data.readers.files import describe_origin
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import load_saved
from coca_train.stages import Stage, resolve, stage_at
from coca_train.tracking.records import read_jsonl
from data_prep.decoded import CLOSE, FEWEST_CHARACTERS, OPEN, lines, shortened


def show(run: str, step: int, rows: int, characters: int, folder: str = "") -> str:
    """Render the first rows of the global batch of a step (from 1, as in metrics.jsonl), each with its provenance.

    characters: of text, of each row. folder: where relative paths of the data begin; empty: as the run's record says.
    Raises ConfigError or UserError E-RUN-21 when the directory is no run, CheckpointError E-CKP-23 when its record is
    damaged, DataError E-TOK-14 when the data is not what
    the run began with, or gives another batch than was logged.
    """
    loaded, record = load_saved(run), read_record(Path(run))
    stage = stage_at(resolve(loaded.config), step)
    config, fingerprint = stage.config, fingerprint_of(record, stage)
    data = with_paths_from(config.data, Path(folder or record.get("folder", ".")))
    if not Path(data.tokenizer).is_file():
        raise DataError(
            f"E-TOK-01 {data.tokenizer}: no such file; the data of a run is needed to show it. Fix: restore it, or say "
            "where relative paths of the data begin: folder=..."
        )
    tokenizer = Tokenizer(data.tokenizer)
    n_rows = config.train.global_batch_size
    edges = Edges(tokenizer.bos, tokenizer.eod)
    mixture = Mixture(data, config.train.seq_len, global_batch_size=n_rows, edges=edges)
    if (difference := fingerprint_diff(fingerprint, mixture.fingerprint())) is not None:
        raise DataError(
            f"E-TOK-14 {run}: the data is not what this run began with: {difference}; only its own data gives its "
            "batches. Fix: restore the data, or say where it is: folder=..."
        )
    first = stage.first_sample + (step - 1 - stage.first_step) * n_rows
    batch = mixture.samples(first, n_rows)
    digest = combine_digests([digest_of(batch)])
    length = piece_length(data.curriculum, config.train.seq_len, step - 1 - stage.first_step)
    pieces = f" in pieces of {length} that do not see each other" if length < config.train.seq_len else ""
    compared = _compared(run, step, digest)
    text = f"{run} step {step}: {n_rows} rows of {config.train.seq_len} tokens{pieces}, {compared}\n"
    for row in range(min(rows, n_rows)):
        head = f"row {row}: {int((batch.targets_BT[row] != IGNORE).sum()):,} targets"
        ids = batch.tokens_BT[row].numpy()
        text += row_text(head, ids, mixture.provenance(first + row), tokenizer, characters)
    return text + (f"{n_rows - rows} more rows: rows={n_rows} shows all\n" if rows < n_rows else "")


def _compared(run: str, step: int, digest: str) -> str:
    """Say whether the digest is that of the batch that was trained on. DataError E-TOK-14 when it is not."""
    metrics = Path(run) / "metrics.jsonl"
    logged = [r["batch_digest"] for r in read_jsonl(metrics) if r.get("step") == step and "batch_digest" in r]
    if not logged:
        return f"digest {digest} (metrics.jsonl has no such step: it was not logged, or not trained)"
    if logged[-1] != digest:
        raise DataError(
            f"E-TOK-14 {run} step {step}: the batch now has digest {digest}, {metrics} says {logged[-1]}; they must "
            "agree. Fix: use the version of coca_train that the run was made with"
        )
    return f"digest {digest} (the one in metrics.jsonl)"


def fingerprint_of(record: JsonObject, stage: Stage) -> JsonObject:
    """Return the data fingerprint of a stage. UserError E-RUN-26 when the run has not reached the stage yet."""
    begun = {one["name"]: one["fingerprint"] for one in record.get("stages", [])}
    if stage.first_step and stage.name not in begun:
        raise UserError(
            f"E-RUN-26 step={stage.first_step + 1} or more: is in stage {stage.name}, which has not begun. "
            f"Fix: a step up to {stage.first_step}, or train on"
        )
    return begun.get(stage.name, record["fingerprint"])


def with_paths_from(data: DataConfig, folder: Path) -> DataConfig:
    """Return the data section with its relative paths resolved from `folder`."""
    sources = {name: replace(source, path=str(folder / source.path)) for name, source in data.sources.items()}
    return replace(data, tokenizer=str(folder / data.tokenizer), sources=sources)


def row_text(head: str, ids: np.ndarray, from_: Provenance, tokenizer: Tokenizer, characters: int) -> str:
    """Render a row: its source, and each document in it with its place and text. ids: int64 (T,), the model's input."""
    parts = [part for part in from_.parts if part.at < len(ids)]  # the last target may begin another document
    documents = "1 document" if len(parts) == 1 else f"{len(parts)} documents"
    text = f"--- {head}, {from_.source}, epoch {from_.epoch}, window {from_.window}, {documents}\n"
    n_shown = max(1, characters // FEWEST_CHARACTERS)
    room = max(FEWEST_CHARACTERS, characters // min(len(parts), n_shown))
    text += _added(ids[: parts[0].at], tokenizer)
    for part in parts[:n_shown]:
        text += f"  {OPEN}{describe(part)}{CLOSE}\n"
        text += lines(shortened(ids[part.at : part.at + part.token_stop - part.token_start], tokenizer, room))
    if len(parts) > n_shown:
        text += f"  {OPEN}{len(parts) - n_shown} more documents{CLOSE}\n"
    return text + _added(ids[parts[-1].at + parts[-1].token_stop - parts[-1].token_start :], tokenizer)


def describe(part: Passage) -> str:
    """Return a heading such as "document 3, books.jsonl.gz:17, its tokens 0 .. 99 of 250"."""
    first, last = part.token_start - part.document_start, part.token_stop - part.document_start - 1
    origin = f", {escape(describe_origin(part.origin))}" if part.origin else ""
    length = part.document_stop - part.document_start
    return f"document {part.document}{origin}, its tokens {first:,} .. {last:,} of {length:,}"


def _added(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """Render the ids that come from no document."""
    if not len(ids):
        return ""
    kinds = ", ".join("end of document" if i == tokenizer.eod else f"token {i}" for i in np.unique(ids).tolist())
    return f"  {OPEN}added: {len(ids):,} x {kinds}{CLOSE}\n"
