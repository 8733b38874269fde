"""A small corpus of our own, and the real command: forked from the session's server, or started cold."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coca_train
from data_prep.verbs import embedded
from data_prep.verbs.embedded import Document
from tests.faults.fork_server import LAUNCHER, ForkServer, Rank


def documents() -> list[Document]:
    """This package's own sources as code, their words as text; per part two long documents to hold out."""
    files = sorted(Path(coca_train.__file__).parent.glob("*/*.py"))[:50]
    sources = [path.read_text(encoding="utf-8") for path in files]
    parts = {"code": sources, "text": [" ".join(re.findall("[a-z]+", source)) for source in sources]}
    pool = []
    for part, texts in parts.items():
        long = "\n".join(texts[:20])[:30_000]
        pool += [Document(part, f"{part}{n}", text) for n, text in enumerate([*texts[20:], long, long[::-1]])]
    return pool


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "corpus"
    embedded.make(folder, vocab_size=512, progress=False, documents=documents())
    return folder


BARE = "tests.stages.support:run"
SMALL = [
    "data.prepare=none", "model.n_layers=2", "model.d_model=32", "model.n_heads=4", "model.d_ff=64",
    "train.max_steps=12", "train.seq_len=32", "train.micro_batch_size=2", "train.global_batch_size=8",
    "optim.warmup_steps=2", "optim.lr=0.01", "checkpoint.save_every_steps=4", "engine.dtype=fp32",
    "eval.every_steps=6", "eval.max_tokens=512", "eval.sample_tokens=4", "eval.extrapolation.multiples=[1,4]",
    "eval.extrapolation.max_documents=1", "tracking.log_every_steps=1",
]  # fmt: skip


@pytest.fixture
def words(corpus, tmp_path) -> list[str]:
    """Overrides that make a training take seconds."""
    return [f"data.dir={corpus}", f"run.root={tmp_path}/runs", *SMALL]


@pytest.fixture
def run(server: ForkServer, words, tmp_path) -> Callable[..., Rank]:
    """`python -m coca_train` with these overrides, forked. bare: without pictures and what else takes seconds."""

    def go(*overrides: str, bare: bool = False, ranks: int = 1, **options: Any) -> Rank:
        if bare:
            job = {"overrides": [*words, *overrides]}
            return server.run(BARE, job, ranks, cwd=tmp_path, launcher=ranks > 1, **options)[0]
        return server.command(["coca_train", *words, *overrides], ranks, cwd=tmp_path, **options)[0]

    return go


@pytest.fixture
def cold(words, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python -m coca_train`, or another verb, in processes that begin with nothing."""

    def go(*overrides: str, verb: str = "train", processes: int = 1) -> subprocess.CompletedProcess[str]:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
        start = [sys.executable, "-m", *(torchrun if processes > 1 else []), "coca_train"]
        start += [] if verb == "train" else [verb]
        return subprocess.run(
            [*start, *words, *overrides],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key not in LAUNCHER} | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )

    return go
