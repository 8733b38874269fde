"""The data as a training checks it at its start, on each host, and blocks against their sums while time is left."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from coca_train.data.dataset import BLOCK_BYTES, IndexedDataset
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.mixture import Mixture, require_files
from coca_train.data.packing import Edges
from coca_train.data.provenance import MANIFEST
from coca_train.data.tokenizer import Tokenizer
from coca_train.models.transformer import vocab_size
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.schedule import Stage

COMMANDS = "python -m data_prep --help (docs/corpora.md)"
STRIDE = 0.6180339887498949  # the golden ratio: however early time is up, what was read is spread over the file


@dataclass(frozen=True)
class DataState:
    """What a host has. problem: the first error, in its own words. digest: of all fingerprints. size: [bytes].

    blocks, checked: those with a sum, and those read and held against it. to_come: it is made when the training starts.
    """

    problem: str = ""
    digest: str = ""
    n_files: int = 0
    size: int = 0
    blocks: int = 0
    checked: int = 0
    to_come: bool = False


def data_state(stages: Sequence[Stage], seconds: float) -> DataState:
    """Open and check everything that a training of these stages reads. seconds: for blocks."""
    end = time.monotonic() + seconds
    if to_come(stages):
        return DataState(to_come=True)
    try:
        fingerprints, prefixes = [], dict[str, None]()
        for stage in stages:
            fingerprints += _of_stage(stage, prefixes)
        datasets = [IndexedDataset(prefix, verify_blocks=True) for prefix in prefixes]
        blocks = checked = 0
        for number, dataset in enumerate(datasets):
            if dataset._sums is None:
                continue
            own = -(-dataset.n_tokens * dataset.dtype.itemsize // BLOCK_BYTES)
            blocks += own
            share_s = max(0.0, end - time.monotonic()) / (len(datasets) - number)
            checked += sum(1 for _ in _checked(dataset, own, time.monotonic() + share_s))
    except UserError as error:
        return DataState(problem=str(error))
    paths = [Path(f"{prefix}{suffix}") for prefix in prefixes for suffix in (".bin", ".idx")]
    paths += [Path(name) for name in {stage.config.data.tokenizer for stage in stages}]
    text = json.dumps(fingerprints, sort_keys=True).encode()
    size = sum(path.stat().st_size for path in paths)
    return DataState("", hashlib.sha256(text).hexdigest()[:12], len(paths), size, blocks, checked)


def to_come(stages: Sequence[Stage]) -> bool:
    """Whether the data is made when the training starts."""
    first = stages[0].config.data
    return (first.prepare == "embedded" or first.path is not None) and not (Path(first.dir) / MANIFEST).is_file()


def _of_stage(stage: Stage, prefixes: dict[str, None]) -> list[object]:
    """The fingerprints of a stage's data, after every check of its start; the prefixes of its files are added."""
    config = stage.config
    require_files(config.data, lambda: COMMANDS)
    tokenizer = Tokenizer(config.data.tokenizer)
    n_tokens = vocab_size(config.model, tokenizer.vocab_size, tokenizer.path)
    train = config.train
    edges = Edges(tokenizer.bos, tokenizer.eod)
    mixture = Mixture(config.data, train.seq_len, n_tokens, train.global_batch_size, edges)
    mixture.samples(stage.first_sample, train.micro_batch_size)
    held_out = HeldOut(config.data)
    Validation(held_out, train.seq_len, config.eval.max_tokens, train.micro_batch_size, n_tokens)
    for source in config.data.sources.values():
        prefixes |= {prefix: None for prefix in (source.path, source.valid_path) if prefix}
    return [mixture.fingerprint(), held_out.fingerprint()]


def _checked(dataset: IndexedDataset, n_blocks: int, end: float) -> Iterator[int]:
    """Blocks, each read and held against its sum, until all are or time is up. Hosts begin at different ones."""
    a_block = BLOCK_BYTES // dataset.dtype.itemsize
    step = _coprime(max(1, round(STRIDE * n_blocks)), n_blocks)
    at = dist.rank() * step % n_blocks if n_blocks else 0
    for _ in range(n_blocks):
        if time.monotonic() > end:
            return
        dataset.tokens(at * a_block, min((at + 1) * a_block, dataset.n_tokens))
        yield at
        at = (at + step) % n_blocks


def _coprime(step: int, n: int) -> int:
    """The first number from `step` on with which steps modulo n come to every place."""
    while gcd(step, n) > 1:
        step += 1
    return step
