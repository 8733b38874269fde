"""`python -m benchmarks.order`: what the order of a very large mixture costs, before and during training.

Sparse datasets, 30 sources and 50 billion tokens in all, with random weights. Start-up: open every source, make the
mixture and its fingerprint. A step: source, epoch and window of each of 256 samples, at random steps. Memory: what the
process has of its own (anonymous pages; mapped files are the page cache's) more than before, after the steps and after
reading 20 of them. Each row is measured in a process of its own.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import MIB, ROOT, say
from coca_train.config.schema import DataConfig, SourceConfig
from coca_train.data.dataset import write_index
from coca_train.data.mixture import Mixture
from coca_train.runtime.printing import markdown

SEQ_LEN, GLOBAL_BATCH, N_STEPS = 2048, 256, 500
CHUNK = 1 << 20  # documents
# What is measured: name -> (mean document [tokens], document_mask)
CASES = {
    "documents of 1 000 000 tokens": (1_000_000, False),
    "documents of 1 000 tokens": (1_000, False),
    "documents of 1 000 tokens, document_mask": (1_000, True),
}


def lengths(n_documents: int, mean: int, seed: int) -> Iterator[np.ndarray]:
    """Log-normal lengths [tokens], the same ones every time."""
    random_ = np.random.default_rng(seed)
    for begin in range(0, n_documents, CHUNK):
        drawn = random_.lognormal(math.log(mean) - 0.5, 1.0, min(CHUNK, n_documents - begin))
        yield np.clip(drawn, 1, 2**31 - 1).astype(np.int32)


def make(prefix: Path, n_tokens: int, mean: int, seed: int) -> None:
    """A dataset of about n_tokens zeros: the .bin takes no room on disk, the .idx 20 bytes a document."""
    n_documents = max(1, n_tokens // mean)
    drawn = partial(lengths, n_documents, mean, seed)
    with open(f"{prefix}.idx", "wb") as idx:
        write_index(idx, np.uint16, n_documents, drawn)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * sum(int(part.sum(dtype=np.int64)) for part in drawn()))


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind (Linux)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no line Anonymous")


def measure(folder: Path, document_mask: bool) -> dict[str, float]:
    """Open, order and read, in this process."""
    sources = {
        path.stem: SourceConfig(
            path=str(path.with_suffix("")),
            valid_path=None,
            weight=random.Random(path.stem).uniform(0.1, 10),
            on_exhausted="repeat",
        )
        for path in sorted(folder.glob("*.bin"))
    }
    config = DataConfig(
        path=None,
        text_field="text",
        vocab_size=None,
        valid_share=None,
        on_error="stop",
        prepare="none",
        dir=str(folder),
        tokenizer=str(folder / "tokenizer.model"),
        sources=sources,
        seed=1,
        order="shuffled",
        packing="windows",
        upsample_from_tokens=None,
        upsample_factor=1,
        document_mask=document_mask,
        verify_blocks=True,
        prefetch_steps=0,
    )
    before, begin = anonymous_bytes(), time.perf_counter()
    mixture = Mixture(config, SEQ_LEN)
    mixture.fingerprint()
    start_up = time.perf_counter() - begin
    steps, random_ = [], random.Random(1)
    for _ in range(N_STEPS):
        first = random_.randrange(10**6) * GLOBAL_BATCH
        begin = time.thread_time()  # CPU time: other processes on the machine do not count
        mixture.places(first, GLOBAL_BATCH)
        steps.append(time.thread_time() - begin)
    for step in range(20):  # with a document mask this looks at the index all over
        mixture.samples(step * GLOBAL_BATCH, GLOBAL_BATCH)
    return {
        "documents": sum(source.dataset.n_documents for source in mixture.sources),
        "tokens": sum(source.dataset.n_tokens for source in mixture.sources),
        "start_up_s": start_up,
        "step_ms": 1e3 * statistics.median(steps),
        "slowest_step_ms": 1e3 * max(steps),
        "memory_mib": (anonymous_bytes() - before) / MIB,
    }


def bench(n_tokens: int, n_sources: int) -> list[dict[str, Any]]:
    """A row a case; the datasets are made in a temporary folder, one mean length at a time."""
    rows = []
    for mean in sorted({mean for mean, _ in CASES.values()}, reverse=True):
        with tempfile.TemporaryDirectory() as folder:
            say(f"making {n_sources} datasets with documents of {mean:,} tokens")
            for j in range(n_sources):
                make(Path(folder) / f"s{j:02d}", n_tokens // n_sources, mean, seed=j)
            (Path(folder) / "tokenizer.model").write_bytes(b"none")
            for name, (of, document_mask) in CASES.items():
                if of == mean:
                    command = [sys.executable, "-m", "benchmarks.order", "--measure", folder]
                    command += ["--document-mask"] if document_mask else []
                    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
                    rows.append({"case": name} | json.loads(out))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.order", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=50_000_000_000)
    parser.add_argument("--sources", type=int, default=30)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--document-mask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.document_mask)))
        return
    columns = ("", "documents", "tokens", "start-up [s]", "a step [ms]", "slowest of 500 [ms]")
    rows = [
        [
            row["case"],
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            *(f"{row[key]:.2f}" for key in ("start_up_s", "step_ms", "slowest_step_ms")),
            f"{row['memory_mib']:.1f}",
        ]
        for row in bench(options.tokens, options.sources)
    ]
    print(markdown([*columns, "memory [MiB]"], rows))


if __name__ == "__main__":
    main()
