"""python -m data_prep retrieval: prompts with their answers (coca_train/data/retrieval.py), to train on.

Small models learn to look back late, and from running text hardly at all: these texts hold little else. A set
(`retrieval.sets`) is a file of documents of some kinds, each kind as likely, in sizes of 1 to the kind's largest, each
as likely. One generator draws all documents of a set in turn, those of the training file first.
"""

import gzip
import io
import json
import random
from pathlib import Path

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.retrieval import KINDS
from coca_train.runtime.durable import write_bytes
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import n_bytes


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
        draw, kinds = random.Random(f"{name} {options.seed}"), list(chosen.kinds.items())
        for split, n_documents in (("train", chosen.n_documents), ("valid", options.n_valid_documents)):
            buffer = io.BytesIO()
            # Without name and time, so that the same text gives the same bytes.
            with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
                for index in range(n_documents):
                    kind, largest = draw.choice(kinds)
                    text = KINDS[kind](draw.randint(1, largest), draw)
                    file.write(json.dumps({"text": text, "meta": {"id": f"{split}-{index}"}}).encode() + b"\n")
            path = write_bytes(Path(options.dir) / f"{name}_{split}.jsonl.gz", buffer.getvalue())
            print(f"{path}: {n_documents:,} documents, {n_bytes(len(buffer.getvalue()))}", flush=True)
    return 0
