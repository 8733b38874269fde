"""The real `python -m coca_train`, in miniature, for the forked ranks of the end-to-end kill tests."""

import hashlib
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import torch

from coca_train import checkpoint
from coca_train import commands as cli
from coca_train.checkpoint.weights import Stored
from coca_train.data.dataset import IndexedWriter

TINY = [
    "model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=48",
    "train.max_steps=10", "train.seq_len=24", "train.micro_batch_size=2", "train.global_batch_size=4",
    "checkpoint.save_every_steps=3", "optim.warmup_steps=2", "data.prepare=none",
    "eval.every_steps=5", "eval.max_tokens=192", "eval.sample_tokens=0", "eval.extrapolation.enabled=false",
    "tracking.progress_bar=false", "tracking.log_every_steps=1",
    "engine.device=cpu", "engine.timeout_s=30", "engine.bucket_size=100000",
]  # fmt: skip


def prepare(folder: Path) -> list[str]:
    """A tokenizer and two small sources in `folder`; the overrides that use them."""
    words = [f"{a}{b}" for a in "bcdfgklmnp" for b in ("an", "el", "ir", "os", "ut")]
    choose = random.Random(0)
    text = [" ".join(choose.choices(words, k=30)) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(text))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=64, minloglevel=2,
        model_type="bpe", byte_fallback=False, num_threads=1,
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for name in ("text_train", "text_valid", "code_train", "code_valid"):
        with IndexedWriter(folder / name, np.uint16) as writer:
            for line in text if name.endswith("train") else text[:40]:
                writer.add_document(pieces.encode(line))
    return [f"data.dir={folder}", f"data.tokenizer={folder}/tokenizer.model"]


def run(overrides: list[str]) -> None:
    """One rank of the command line, with its exit code."""
    torch.set_num_threads(1)
    code = cli.main(overrides)
    if code:
        sys.exit(code)


def final_state(run_dir: Path) -> tuple[int, str, list]:
    """(last step, digest of every bit of its state, the logged losses by step, later lines winning)."""
    step, digest = newest_state(run_dir)
    losses = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            losses[record["step"]] = (record["loss"], record["batch_digest"])
    return step, digest, sorted(losses.items())


def newest_state(run_dir: Path) -> tuple[int, str]:
    """Step and digest of every bit of the newest checkpoint."""
    newest = checkpoint.find(run_dir)
    assert newest is not None
    total = hashlib.sha256(json.dumps(newest.manifest["counters"], sort_keys=True).encode())
    with Stored(newest) as stored:
        for name in sorted(stored.spec):
            total.update(name.encode() + stored.tensor(name).numpy().tobytes())
    return newest.step, total.hexdigest()


def leftovers(run_dir: Path) -> list[str]:
    """What no finished run should leave behind."""
    names = [path.name for path in run_dir.rglob("*") if path.name.startswith((".tmp", ".trash", "run.lock", ".run"))]
    return names + [name for name in os.listdir("/dev/shm") if name.startswith("deepspeed")]
