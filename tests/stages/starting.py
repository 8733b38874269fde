"""Runs that begin from other weights: a tiny LLaMA of transformers, and a training of one step that changes nothing."""

import json
from pathlib import Path
from typing import Any

from coca_train.hub import importing
from coca_train.hub.options import IMPORT, given
from tests.stages.support import Runs, schedule, stage

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 64,
    "pad_token_id": None,
}  # fmt: skip
LLAMA = [
    "model=llama_tiny", "model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.n_kv_heads=null",
    "model.d_ff=48", "position.frequencies.theta=500",
]  # fmt: skip
STILL = [*schedule(stage("a", "max_steps: 1")), "optim.lr=1e-30", "optim.min_lr=0", "optim.warmup_init_lr=0"]
STILL += ["optim.weight_decay=0", "optim.warmup_steps=0"]


def tokenizer_of(corpus: list[str]) -> Path:
    return Path(next(word for word in corpus if word.startswith("data.tokenizer=")).partition("=")[2])


def other_tokenizer(path: Path, corpus: list[str]) -> Path:
    """The same ids under another digest."""
    path.write_bytes(tokenizer_of(corpus).read_bytes() + b"\x9a\x06\x00")  # an empty field that nobody knows
    return path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def begin(runs: Runs, folder: Path, *words: str, name: str = "r") -> Path:
    """A run that begins from a folder, one step that changes nothing."""
    return runs.train(name, *LLAMA, *STILL, f"start.path={folder}", *words)


def imported(folder: Path, root: Path, name: str, **options: Any) -> Path:
    return importing.run(given(IMPORT, source=str(folder), name=name, root=str(root), **options))
