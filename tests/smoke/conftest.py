"""A small corpus of our own, and the real command in real processes."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import coca_train
from data_prep.installation import Document
from data_prep.verbs import embedded


def documents() -> list[Document]:
    """This package's own sources as code, their words as text; per part two long documents to hold out."""
    files = sorted(Path(coca_train.__file__).parent.glob("*/*.py"))[:50]
    sources = [path.read_text(encoding="utf-8") for path in files]
    parts = {"code": sources, "text": [" ".join(re.findall("[a-z]+", source)) for source in sources]}
    found = []
    for part, texts in parts.items():
        long = "\n".join(texts[:20])[:30_000]
        found += [Document(part, f"{part}{n}", text) for n, text in enumerate([*texts[20:], long, long[::-1]])]
    return found


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "corpus"
    embedded.make(folder, vocab_size=512, progress=False, documents=documents())
    return folder


@pytest.fixture
def command(corpus, tmp_path) -> Callable[..., list[str]]:
    """The training command, with overrides that make it take seconds."""

    def make(*overrides: str, processes: int = 1) -> list[str]:
        start = [sys.executable, "-m"]
        if processes > 1:
            start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
        small = [
            f"data.dir={corpus}",
            "data.prepare=none",
            f"run.root={tmp_path}/runs",
            "model.n_layers=2",
            "model.d_model=32",
            "model.n_heads=4",
            "model.d_ff=64",
            "train.max_steps=12",
            "train.seq_len=32",
            "train.micro_batch_size=2",
            "train.global_batch_size=8",
            "optim.warmup_steps=2",
            "optim.lr=0.01",
            "checkpoint.save_every_steps=4",
            "engine.dtype=fp32",
            "eval.every_steps=6",
            "eval.max_tokens=512",
            "eval.sample_tokens=4",
            "eval.extrapolation.multiples=[1,4]",
            "eval.extrapolation.max_documents=1",
            "tracking.log_every_steps=1",
        ]
        return [*start, "coca_train", *small, *overrides]

    return make


@pytest.fixture
def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    return clean | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def run(command, environment, tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def go(*overrides: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*overrides, processes=processes),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return go
