"""python -m data_prep retrieval: prompts with their answers (coca_train/data/retrieval.py), to train on.

Small models learn to look back late, and from running text hardly at all: these texts hold little else. A set
(`retrieval.sets`) is a file of documents of some kinds, each kind as likely, in sizes of 1 to the kind's largest, each
as likely. One generator draws all documents of a set in turn, those of the training file first.
"""

import gzip
import io
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.retrieval import KINDS
from coca_train.runtime.durable import write_bytes
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import n_bytes


def document(draw: random.Random, kinds: Mapping[str, int]) -> str:
    """Make one text. kinds: the largest size of each."""
    kind, largest = draw.choice(list(kinds.items()))
    return KINDS[kind](draw.randint(1, largest), draw)


def lines(draw: random.Random, split: str, n_documents: int, kinds: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a .jsonl file: text, and meta.id, which names a document."""
    for index in range(n_documents):
        record = {"text": document(draw, kinds), "meta": {"id": f"{split}-{index}"}}
        yield json.dumps(record) + "\n"


def compressed(text: Iterator[str]) -> bytes:
    """Compress with gzip, without name and time, so that the same text gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.writelines(line.encode() for line in text)
    return buffer.getvalue()


def run(config: PrepareConfig) -> int:
    """Write <set>_train.jsonl.gz and <set>_valid.jsonl.gz of every set into retrieval.dir, over what is there.

    Raises DataError E-RAW-31 when there is no set, StorageError when the disk refuses.
    """
    options = config.retrieval
    if not options.sets:
        raise DataError(
            "E-RAW-31 retrieval.sets: there is no set to write. Fix: choose corpus=retrieval_miniature, or write "
            "'+retrieval.sets.short={types: {recall: 6}, n_documents: 30000}'"
        )
    for name, chosen in options.sets.items():
        draw = random.Random(f"{name} {options.seed}")
        for split, n_documents in (("train", chosen.n_documents), ("valid", options.n_valid_documents)):
            data = compressed(lines(draw, split, n_documents, chosen.kinds))
            path = write_bytes(Path(options.dir) / f"{name}_{split}.jsonl.gz", data)
            print(f"{path}: {n_documents:,} documents, {n_bytes(len(data))}", flush=True)
    return 0
