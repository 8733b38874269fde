"""python -m data_prep retrieval: passkey prompts with their answers, to train models that retrieve."""

import random
from pathlib import Path

from coca_train.runtime.durable import write_bytes
from coca_train.runtime.printing import n_bytes
from data_prep.passkeys import compressed, lines
from data_prep.schema import PrepareConfig


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
