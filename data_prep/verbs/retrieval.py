"""python -m data_prep retrieval: passkey prompts with their answers, to train models that retrieve.

A document has n fillers, n uniform in 0 ... max_repeats, x of them before the key, x uniform in 0 ... n; a key of five
digits; and behind the question the answer, "The passkey is 12345.", on a line of its own, which ends the document.
One generator draws n, x and key of every document in turn, those of the training file first. The prompt itself is in
coca_train/data/passkeys.py.
"""

import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

from coca_train.data.passkeys import COCA
from coca_train.runtime.durable import write_bytes
from coca_train.runtime.printing import n_bytes
from data_prep.schema import PrepareConfig


def document(draw: random.Random, max_repeats: int) -> str:
    """One text."""
    n_fillers = draw.randint(0, max_repeats)
    n_before = draw.randint(0, n_fillers)
    key = draw.randint(COCA.lowest, COCA.highest)
    return f"{COCA.prompt(key, n_before, n_fillers - n_before)}\nThe passkey is {key}.\n"


def lines(draw: random.Random, split: str, n_documents: int, max_repeats: int) -> Iterator[str]:
    """Of a .jsonl file: text, and meta.id, which names a document."""
    for index in range(n_documents):
        record = {"text": document(draw, max_repeats), "meta": {"id": f"{split}-{index}"}}
        yield json.dumps(record) + "\n"


def compressed(text: Iterator[str]) -> bytes:
    """As gzip, without name and time, so that the same text gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.writelines(line.encode() for line in text)
    return buffer.getvalue()


def run(config: PrepareConfig) -> int:
    """Write passkey_train.jsonl.gz and passkey_valid.jsonl.gz into retrieval.dir, over what is there.

    Raises StorageError when the disk refuses.
    """
    options, draw = config.retrieval, random.Random(config.retrieval.seed)
    for split, n_documents in (("train", options.n_documents), ("valid", options.n_valid_documents)):
        data = compressed(lines(draw, split, n_documents, options.max_repeats))
        path = write_bytes(Path(options.dir) / f"passkey_{split}.jsonl.gz", data)
        print(f"{path}: {n_documents:,} documents, {n_bytes(len(data))}")
    return 0
